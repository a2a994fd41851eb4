# SPDX-License-Identifier: Apache-2.0
"""Many programs for one import: a server that has imported modules forks a process for each.

    fork_server.py --serve NAME MODULE...    serves at an abstract socket until its stdin ends
    fork_server.py NAME PROGRAM ARGUMENT...  a client, in place of `python3 PROGRAM ARGUMENT...`

The client has the place among the processes of a job: its environment, folder and descriptors
become those of the forked process, signals are passed on, and it ends as that one does."""
import array
import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import types

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCONT)
LENGTH = struct.Struct("I")


def be_client(name, words):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{name}")
    request = json.dumps([words, dict(os.environ), os.getcwd()]).encode()
    connection.sendmsg([LENGTH.pack(len(request)) + request],
                       [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])

    def pass_on(number, _):
        with contextlib.suppress(OSError):  # the forked process has ended
            connection.sendall(bytes([number]))
    for number in PASSED_ON:  # behind the request, or a signal would stand in its place
        signal.signal(number, pass_on)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # pipes end with the forked process
        os.dup2(nothing, number)
    status = LENGTH.unpack(connection.recv(LENGTH.size))[0]
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def receive(connection):
    """The words, environment and folder of a client, and its descriptors; None if it is gone."""
    room = socket.CMSG_SPACE(3 * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(LENGTH.size, room)
    if not ancillary:
        return None
    descriptors = array.array("i")
    descriptors.frombytes(ancillary[0][2])
    rest = connection.recv(LENGTH.unpack(data)[0], socket.MSG_WAITALL)
    return (*json.loads(rest), list(descriptors))


def become(words, environment, folder, descriptors):
    """What this process is to run."""
    os.setpgid(0, 0)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, 4096)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.stdout.reconfigure(line_buffering="PYTHONUNBUFFERED" in environment)
    path = [os.path.dirname(os.path.abspath(words[0])),
            *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = path + [one for one in sys.path[1:] if one not in path]
    sys.argv = words
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = words[0]
    with open(words[0], encoding="utf-8") as file:
        code = compile(file.read(), words[0], "exec")
    return lambda: exec(code, vars(main))


def forget(sockets, events):
    """In a forked process: an object that lived on would close what has its number by then."""
    for key in events.get_map().values():
        held = key.fileobj, *(key.data or ())
        sockets += [one for one in held if isinstance(one, socket.socket)]
    for one in sockets:
        one.close()
    events.close()


def serve(name):
    """Returns, in a forked process, what this one is to run; None when stdin has ended."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen(64)
    events = selectors.DefaultSelector()
    events.register(sys.stdin.fileno(), selectors.EVENT_READ)
    events.register(listener, selectors.EVENT_READ)
    os.write(1, b"ready\n")
    while True:
        for key, _ in events.select():
            if key.fileobj == sys.stdin.fileno():
                return None
            if key.fileobj is listener:
                connection, _ = listener.accept()
                request = receive(connection)
                if request is None:
                    connection.close()
                    continue
                child = os.fork()
                if child == 0:
                    forget([connection], events)
                    return become(*request)
                for descriptor in request[3]:
                    os.close(descriptor)
                ended = os.pidfd_open(child)
                events.register(connection, selectors.EVENT_READ, (child, None))
                events.register(ended, selectors.EVENT_READ, (child, connection))
                continue
            child, connection = key.data
            if connection is not None:  # the forked process has ended
                _, status = os.waitpid(child, 0)
                events.unregister(key.fileobj)
                os.close(key.fileobj)
                if connection in events.get_map():
                    events.unregister(connection)
                    with contextlib.suppress(OSError):  # the client was killed as well
                        connection.sendall(LENGTH.pack(status))
                connection.close()
            elif key.fileobj.fileno() >= 0:  # it was not closed in this round
                numbers = key.fileobj.recv(64)
                if not numbers:  # the client was killed
                    events.unregister(key.fileobj)
                for number in numbers or [signal.SIGKILL]:
                    os.kill(child, number)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        for module in sys.argv[3:]:
            importlib.import_module(module)
        run = serve(sys.argv[2])
        if run is not None:
            run()
    else:
        be_client(sys.argv[1], sys.argv[2:])
