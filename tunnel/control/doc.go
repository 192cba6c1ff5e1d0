// Package control queries and controls a running tunnel: its status, enabling, disabling,
// adding and removing paths, reloading the file, stopping.
//
// # Theory of operation
//
// The tunnel's process listens on an abstract Unix socket named "cleat-tunnel/UID/NAME"
// in its network namespace. The socket leaves no file behind however the process ends, it
// is listed in /proc/net/unix, and a name can be used by one tunnel at a time (package
// internal/localsock). The server admits its own user and root, by SO_PEERCRED, and
// answers others with 403. The client trusts only a server of the user in the name.
//
// The protocol is HTTP/1.1, so that any HTTP client works, with JSON bodies of at most 64
// KiB:
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
// An unknown field in a body is an error, so that no request is silently ignored. A
// failure is answered with an Error: 400 for an invalid request, 404 for an unknown path,
// 409 for a path that exists already or is one too many, 422 with findings for a file
// with mistakes, 500 for the rest. Names of the API change only in a new version: /v2.
//
// MetricsHandler serves /metrics by itself. ListenMetrics and ServeMetrics serve it at
// the address that a tunnel file sets, to everybody who can connect. After their
// listeners are open, they and Serve work in a sealed process.
//
// # Limits
//
// Sixteen connections are served at once, each is closed after a minute without a
// request, and a request must arrive within ten seconds. Root in the tunnel's network
// namespace is admitted, even root of a container that shares the namespace.
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
