# SPDX-License-Identifier: Apache-2.0
"""An sshd in each namespace of `hosts.Hosts`, on keys and a port of its own, for `gradus run`."""
import os
import pathlib
import shutil
import subprocess

import hosts as namespaces

PORT = 2222
SSHD = "/usr/sbin/sshd"


class Logins:
    """Hosts that can be logged in to from the bridge between them, where the launcher runs."""

    def __init__(self, made, folder, sent=()):
        """`sent`: pairs (name, value) of the environment that every login gets."""
        self.made, self.folder, self.sent, self.daemons = made, folder, list(sent), []
        self.names = [made.address(host) for host in range(made.count)]

    def open(self):
        if not os.path.exists(SSHD) or shutil.which("ssh") is None:
            raise namespaces.Unavailable("there is no sshd: install openssh-server")
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                            self.folder / key], check=True)
        (self.folder / "authorized").write_text((self.folder / "user.pub").read_text())
        words = "".join(f"SetEnv {name}={value}\n" for name, value in self.sent)
        (self.folder / "ssh_config").write_text(f"""
UserKnownHostsFile {self.folder}/known
StrictHostKeyChecking accept-new
{words}""")
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {self.folder}/ssh_config '
                                   f'"$@"\n')
        (tools / "ssh").chmod(0o755)
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        for host in range(self.made.count):
            self.serve(host)

    def serve(self, host, port=PORT, more=""):
        """An sshd, once it listens."""
        config = self.folder / f"sshd_config{port}"
        accepted = "".join(f"AcceptEnv {name}\n" for name, _ in self.sent)
        config.write_text(f"""
Port {port}
HostKey {self.folder}/host
AuthorizedKeysFile {self.folder}/authorized
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
{accepted}{more}
""")
        daemon = self.made.popen(host, [SSHD, "-D", "-e", "-f", config], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True)
        self.daemons.append(daemon)
        for _ in range(max(1, more.count("ListenAddress "))):
            line = daemon.stderr.readline()
            if "listening" not in line:
                raise RuntimeError(f"sshd does not listen: {line}")

    def close(self):
        namespaces.stop(self.daemons)

    def path(self):
        """PATH with an ssh that knows these hosts."""
        return f"{self.folder}/tools:{os.environ['PATH']}"

    def words(self, program, flags, identity="user"):
        """A `gradus run` on the bridge."""
        return ["ip", "netns", "exec", self.made.switch, program, "run", "-p", str(PORT), "-i",
                str(self.folder / identity), *map(str, flags)]
