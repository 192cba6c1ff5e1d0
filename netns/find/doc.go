// Package find finds the running container that a person names on a command line, of any
// engine, and lists all running containers.
//
//	web                 searched in every engine and among named namespaces
//	docker:web          in one engine: docker, podman, containerd, lxc, apptainer
//	containerd:k8s.io/web, podman:alice/web   in one containerd namespace; of one user
//	containerd:alice/default/web              in a containerd namespace of one user
//	4242, pid:4242      the process
//	netns:blue          a name under /run/netns
//	/proc/4242/ns/net, path:…   a file
//
// # Theory of operation
//
// All engines are queried at once, each with a timeout, and none by its command line:
//
//	docker      its API, by HTTP over the local socket that DOCKER_HOST, the context or the
//	            default names; one request finds a container by name or id
//	podman      has no daemon. Each running container has a conmon process, whose command
//	            line contains id, name and the directory of its files, for any user. Names
//	            given later, and stopped containers, are in containers.json. With
//	            CONTAINER_HOST: by the API.
//	containerd  the directory of each task below /run/containerd, and nerdctl's names. If no
//	            engine has a match, its API is asked for containers without a task.
//	lxc         each container has a monitor process: lxc-start, or one of Incus or LXD;
//	            otherwise the control groups, v1 or v2
//	apptainer   each instance has a starter process whose title contains user and name
//
// The first process of a container with a monitor is the monitor's child that is process 1 of
// a PID namespace, or else the one in the container's control group or pid file. Monitors in
// other PID namespaces belong to containers inside containers, and are ignored.
//
// A full name or id takes precedence over a prefix of an id, a running container over a
// stopped one, and the user's own over root's. If several remain, the error is Ambiguous. In a
// plain word, a prefix of an id needs at least four characters: "db" is more likely the name of
// a container that is not running. A number is always a process.
//
// Root can name containers of other users as well, but only prefixed with the user's name,
// because users choose the names and ids in their engines. A plain word never means another
// user's container, even if root's own container of that name is not running.
//
// # Trust
//
// Engines report process ids, in files that may be stale and over sockets that may lead to
// another machine or PID namespace. A process counts as a container's only if its control
// group or its parent's command line contains the container's id, or if its parent is the
// monitor. Found records when the process started. NS checks that before and after it opens
// the namespace, and so notices if the id belongs to another process by then.
//
// Ordinary users may try to mislead root, so:
//
//   - A file or directory counts only if it belongs to the user whose directory it is in. It is
//     opened after it was checked (O_PATH), so links to other users' files, FIFOs and devices
//     are never opened. Sizes and counts are bounded.
//   - An engine belongs to the user whose process listens at its socket (SO_PEERCRED).
//   - The first process of a user's container must be in a network namespace owned by a user
//     namespace that the user created (ioctl_ns(2)), or in the host's.
//   - A monitor that runs as root is trusted only if it has CAP_SYS_ADMIN in the caller's user
//     namespace. One in a container that shares the host's process ids does not.
//   - Found.NS opens the namespace that was checked, or fails.
//   - Other users' engines are queried only to list everything, or if the user is named, and a
//     bounded number at a time: a user can make a query block forever.
//
// # Listening
//
// Listen reports when containers may have changed. Docker's API has a stream of events. Podman
// has no daemon, and its service exits when idle, but its monitors write each container's
// process id to a file below the user's runtime directory. containerd creates a directory for
// each task, and ip-netns(8) a file for each name. Listen watches these directories with
// inotify(7), and their parents while they are missing. So it needs no process of its own, and
// no rights except to read the directories. Root does not listen to other users' engines,
// which could wake it as often as they like.
//
// # Limits
//
// Remote engines are refused with an error that names them. Docker Desktop's containers run in
// a virtual machine: the error says that their process was not found. Stopped containers of
// Podman are found only in its default directories, and CRI-O's count as Podman's. Containers
// of containerd without a task are found if nerdctl created them. If LXC had to number a
// control group ("web-1") because a stale one existed, a container in the foreground has that
// name. Without root a user sees all running containers, but can only open the user's own.
//
// Sources: Docker Engine API v1.41 (ContainerList, ContainerInspect, SystemEvents); docker
// context (cli/context/store); conmon(8); containers-storage(5); containerd docs/PLUGINS.md and
// runtime/v2; nerdctl docs/dir.md; cri-containerd annotations (pkg/annotations);
// lxc.container.conf(5), lxc_monitor title and cgroup names as in LXC 5.0; Apptainer 1.4's
// instance titles; proc(5), cgroups(7), ioctl_ns(2).
package find
