# On Colab and Kaggle this installs the package with what the hardware needs: from ADDRESS, or from
# the wheel that `make wheel` builds, uploaded here, to Drive or into a data set. Elsewhere it does
# nothing.
import glob
import importlib.metadata
import importlib.util
import os
import subprocess
import sys

ADDRESS = ""  # such as git+https://HOST/nf_resnets.git; empty for a wheel
if "google.colab" in sys.modules or "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
    tpu = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
    platform = "gpu" if glob.glob("/dev/nvidia[0-9]*") else "tpu" if tpu else "cpu"
    if importlib.util.find_spec("nf_resnets") is None:
        extras = {"gpu": "cuda,", "tpu": "tpu,", "cpu": ""}[platform] + "experiments,translation"
        folders = ("", "drive/MyDrive/", "/kaggle/input/**/")
        wheels = [glob.glob(f"{each}nf_resnets-*.whl", recursive=True) for each in folders]
        if not ADDRESS and not any(wheels):
            raise SystemExit("No nf_resnets-*.whl is here; upload one, or set ADDRESS.")
        what = f"nf_resnets[{extras}] @ {ADDRESS}"
        if not ADDRESS:
            what = f"{max(sum(wheels, []))}[{extras}]"
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", what], check=True)
    for name in ("jax", "jaxlib", "flax", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version not in (None, importlib.metadata.version(name)):
            raise SystemExit(f"{name} {version} was imported before: restart, and run this again.")
    import jax

    used = jax.devices()[0].platform
    assert used == platform, f"JAX uses the {used}, and there is a {platform}: begin a new session."
