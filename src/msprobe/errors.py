"""Every error a user can cause; each one is a full sentence: what, where, what to do."""


class MsprobeError(Exception):
    """The root of all errors that msprobe raises on purpose."""


class ConfigError(MsprobeError, ValueError):
    """The configuration, from a file or from arguments, cannot be used as it is."""


class UsageError(MsprobeError):
    """A function was called in a way that cannot work."""


class RecordingError(MsprobeError, ValueError):
    """A recording on disk is missing, damaged, or not what it claims to be."""


class HardwareError(MsprobeError):
    """The request needs a device or a package that this machine does not have."""


class OverflowLimitReached(MsprobeError, ValueError):
    """As many calls have overflowed as the configuration lets training go on with (overflow_nums)."""
