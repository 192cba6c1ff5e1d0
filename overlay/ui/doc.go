// Package ui shows a cluster in a browser, and to Prometheus.
//
// # The page
//
// Handler serves one page: hosts with their containers, who talks to whom, and what does not work since when. Its
// files are in the program (directory page). They are HTML, CSS and JavaScript as the browser runs them, without a
// build step. The page asks the handler for a picture (control.Picture) every two seconds while it is visible, and
// changes what differs. The handler asks the node, at most once a second however many pages there are.
//
// The page has no login, so whoever reaches its address sees all of it. It changes nothing. These keep other web
// sites out of it:
//
//   - A Content-Security-Policy allows what comes from the handler itself, and nothing else: no inline script, no
//     frame, no form.
//   - Requests for a host name that is not of this machine are refused. Otherwise a web site whose name resolves to
//     a loopback address could read the picture (DNS rebinding).
//   - Texts of others, such as names of containers, only become text nodes of the page.
//
// # Metrics
//
// Metrics serves the host's own figures in Prometheus's text format. A node exports what it knows by itself, as
// every exporter does: Prometheus asks each host, so a host that is down is one target that is down, and nothing is
// counted twice. Names follow Prometheus's conventions: a prefix, base units, and _total for counters.
//
//	cleat_registry_up                         1 if the registry answers this host
//	cleat_host_up{host}                       1 if a host is alive, as this host sees it
//	cleat_host_registry_member{host}          1 if it runs a member of the registry
//	cleat_problems                            what does not work on this host, as their number
//	cleat_network_containers{network,host}
//	cleat_network_blocks{network,host}
//	cleat_container_receive_bytes_total{network,id,container}, and transmit, and
//	                                          packets: this host's containers
//	cleat_between_hosts_receive_bytes_total, and transmit, and packets: of the device to all other hosts
//	cleat_connections{network,host,peer}      tracked connections between this host and another one
//
// # Limits
//
// Who talks to whom is what the kernels' tables of tracked connections have. Connections that begin and end between
// two looks are missed, and so is the end of the others. Bytes are known only of connections that began while
// net.netfilter.nf_conntrack_acct was set.
package ui
