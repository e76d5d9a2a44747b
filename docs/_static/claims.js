// Buttons that show the claims of one verdict or paper; without this script all of them are there.
addEventListener("DOMContentLoaded", () => {
  const claims = [...document.querySelectorAll("details.claim")];
  const chosen = {verdict: "all", paper: "all"};
  for (const kind of claims.length ? ["paper", "verdict"] : []) {
    const bar = document.createElement("p");
    bar.append(kind, ": ");
    for (const value of ["all", ...new Set(claims.map((claim) => claim.dataset[kind]))]) {
      const button = document.createElement("button");
      button.textContent = value;
      button.onclick = () => {
        chosen[kind] = value;
        for (const claim of claims)
          claim.hidden = Object.entries(chosen).some(
            ([name, wanted]) => wanted !== "all" && claim.dataset[name] !== wanted);
        for (const section of document.querySelectorAll("section section"))
          section.hidden = !section.querySelector("details.claim:not([hidden])");
        for (const other of bar.querySelectorAll("button"))
          other.ariaPressed = other === button;
      };
      button.ariaPressed = value === "all";
      bar.append(button, " ");
    }
    document.querySelector("h1").after(bar);
  }
});
