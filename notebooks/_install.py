# On Colab or Kaggle, upload the wheel that `make wheel` builds, or put it on Drive or into a data
# set; this installs it with what the hardware needs. Elsewhere this does nothing.
import glob
import importlib.metadata
import importlib.util
import os
import subprocess
import sys

if "google.colab" in sys.modules or "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
    tpu = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
    platform = "gpu" if glob.glob("/dev/nvidia[0-9]*") else "tpu" if tpu else "cpu"
    if importlib.util.find_spec("nf_resnets") is None:
        places = ("", "drive/MyDrive/", "/kaggle/input/**/")
        found = [glob.glob(f"{place}nf_resnets-*.whl", recursive=True) for place in places]
        if not any(found):
            raise SystemExit("No nf_resnets-*.whl is here; upload the one in dist/ of a clone.")
        extras = {"gpu": "cuda,", "tpu": "tpu,", "cpu": ""}[platform] + "experiments,translation"
        wheel = f"{max(sum(found, []))}[{extras}]"
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", wheel], check=True)
    for name in ("jax", "jaxlib", "flax", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version not in (None, importlib.metadata.version(name)):
            raise SystemExit(f"{name} {version} was imported before: restart, and run this again.")
    import jax

    used = jax.devices()[0].platform
    assert used == platform, f"JAX uses the {used}, and there is a {platform}: begin a new session."
