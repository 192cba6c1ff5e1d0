// Package control is how one asks a running tunnel how it is, and tells it
// something: use a path or not, take one in or out, read the file again, stop.
//
// # Theory of operation
//
// The tunnel's process listens on an abstract Unix socket named
// "cleat-tunnel/UID/NAME", which belongs to its network namespace: it leaves no file
// behind however the process ends, it is listed in /proc/net/unix, and a name is
// taken by one tunnel at a time (package internal/localsock). The server admits its
// own user and root, by SO_PEERCRED, and says 403 to others; the client believes a
// server of the user in the name alone.
//
// What goes over the socket is HTTP/1.1, so that any client of HTTP will do, with
// JSON bodies of at most 64 KiB:
//
//	GET    /v1/status      200 Status
//	POST   /v1/paths/NAME  204; the body is {"state": "up"} or {"state": "down"}
//	PUT    /v1/paths/NAME  204; adds a path. The body has "device", "local", "local_port",
//	                       "remote", "rate_bits_per_second", "weight", "mtu_bytes", "state"
//	DELETE /v1/paths/NAME  204
//	POST   /v1/reload      200 Reloaded
//	POST   /v1/stop        204, and then the tunnel ends
//	GET    /metrics        200, Prometheus' text format
//
// An unknown field in a body is an error, so that nothing is asked for that isn't done.
// What fails is answered with an Error: 400 for a request that makes no sense, 404 for a
// path that is not there, 409 for one that is there already or is one too many, 422
// with findings for a file with mistakes, 500 for the rest. Names of the API change in
// a new version alone: /v2.
//
// MetricsHandler is /metrics by itself; ListenMetrics and ServeMetrics serve that at the
// place that a tunnel file says, where whoever gets there may read it. All that they and
// Serve do once their listeners are open a sealed process may do, too.
//
// # Limits
//
// Sixteen connections are served at once, each is closed after a minute without a
// request, and a request that isn't there after ten seconds is not waited for. Who is
// root in the tunnel's network namespace, in a container that shares it, too, is admitted.
//
// Sources: unix(7), SO_PEERCRED; RFC 9110 and 9112 (HTTP);
// https://prometheus.io/docs/instrumenting/exposition_formats (text format 0.0.4).
//
// # Example
//
//	l, err := control.Listen("office")
//	…
//	go control.Serve(ctx, l, target)
//	…
//	c, err := control.Dial(ctx, "office")
//	…
//	err = c.SetPath(ctx, "lte", false)
package control
