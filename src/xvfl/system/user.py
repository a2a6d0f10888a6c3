"""Who runs a command."""

import os
import pwd


def user_name() -> str:
    """Return the name of the user, with `sudo` of the user who called it.

    Returns
    -------
    str
        The name, or the number of a user without a name.

    Examples
    --------
    >>> bool(user_name())
    True
    """
    try:
        own = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        own = str(os.getuid())
    caller = os.environ.get("SUDO_USER", "")
    return f"{caller} as {own}" if caller and caller != own else own
