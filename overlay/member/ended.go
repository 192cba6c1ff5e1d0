package member

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A member that was removed from the registry ends by itself, while its clients still have connections. Requests that
// come then may find its database closed, of which etcd panics, and with it this process would end.

// answers are options by which such requests get an error instead.
func (m *Member) answers() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
			if m.ending() {
				return nil, errEnded
			}
			defer m.catch(&err)
			return next(ctx, r)
		}),
		grpc.ChainStreamInterceptor(func(s any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			if m.ending() {
				return errEnded
			}
			defer m.catch(&err)
			return next(s, stream)
		}),
	}
}

var errEnded = status.Error(codes.Unavailable, "the member of the registry has ended")

// catch turns a panic into an error if the member is ending: it began to while the request was served. Locks of etcd
// may stay locked then, so that later requests must not get there.
func (m *Member) catch(err *error) {
	what := recover()
	if what == nil {
		return
	}
	if !m.ending() {
		panic(what)
	}
	*err = errEnded
}

// ending reports whether the member is about to end, or has ended.
func (m *Member) ending() bool {
	e := m.serving.Load()
	if e == nil {
		return false
	}
	select {
	case <-e.Server.StoppingNotify():
		return true
	default:
		return false
	}
}
