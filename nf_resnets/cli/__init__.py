"""The commands of `nf-resnets`: each is a dataclass of options, and a call carries it out."""
