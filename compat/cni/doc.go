// Package cni makes networks of cleat a CNI plug-in: containerd, CRI-O, nerdctl, Kubernetes' runtimes and
// Podman connect containers to a named network by it.
//
// # Theory of operation
//
// A runtime starts cmd/cleat-cni, which sends the variables CNI_* and the configuration on its standard input
// to a running keeper, or starts `cleat` with them if there is none. Either calls Run. So the state is in one
// place, and a container of a runtime is an endpoint like any other: it has names, rules apply to it, and
// `cleat net` shows it.
//
// A container is identified by CNI_CONTAINERID. Runtimes do not say what they call it, so Run looks: in
// CNI_ARGS for the name of a pod, and in the OCI bundle of containerd for that of a container of nerdctl
// (identity.go). The bundle also has the path of the container's resolv.conf, which then leads to the
// network's names. The resolv.conf of a pod belongs to its runtime; the result names the server.
//
// The verbs:
//
//	ADD      connects the container. With a previous result, its own is added to that one.
//	DEL      disconnects it. Its namespace may be gone, and so may be the network.
//	CHECK    compares the container with the previous result and with the kernel. What plug-ins after this one
//	         may have changed is no error.
//	GC       disconnects what this network's runtime does not list. A configuration without a list says
//	         nothing about what is valid, so nothing is disconnected.
//	STATUS   reports a network without a device or a free address. It takes no lock: runtimes ask every few
//	         seconds, and a late answer makes a node "not ready".
//	VERSION  lists versions.
//
// containerd never sends GC. What has no namespace any more is disconnected by the keeper, and when it is in
// the way of an ADD.
//
// # Limits
//
// IPAM plug-ins are not called: networks have addresses of their own, which they share with containers of
// other engines. Bursts of the capability bandwidth are chosen by cleat.
//
// Sources: the CNI specification 1.1.0 and CONVENTIONS.md of containernetworking/cni; containerd
// docs/PLUGINS.md (runtime v2 task directories); opencontainers/runtime-spec config.md; ocicni's CNI_ARGS.
//
//	code := cni.Run(ctx, cni.Host{Networks: cfg}, cni.Call{Getenv: os.Getenv, Stdin: text, Out: os.Stdout})
package cni
