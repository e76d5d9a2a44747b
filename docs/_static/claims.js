// Buttons that show the claims of one verdict; without this script all of them are there.
addEventListener("DOMContentLoaded", () => {
  const claims = [...document.querySelectorAll("details.claim")];
  if (!claims.length) return;
  const bar = document.createElement("p");
  for (const verdict of ["all", ...new Set(claims.map((claim) => claim.dataset.verdict))]) {
    const button = document.createElement("button");
    button.textContent = verdict;
    button.onclick = () => claims.forEach((claim) => {
      claim.hidden = verdict !== "all" && claim.dataset.verdict !== verdict;
    });
    bar.append(button, " ");
  }
  document.querySelector("h1").after(bar);
});
