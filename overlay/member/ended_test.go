package member

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestRequestOfEnded asks a member that has ended by itself, as a removed one does, over a connection from before.
func TestRequestOfEnded(t *testing.T) {
	dir, err := os.MkdirTemp("", "reg") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	m, err := Start(Config{Host: "a", ID: "1", Dir: filepath.Join(dir, "etcd"), Sockets: dir, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dial := DialClients(dir)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"passthrough:///a"}, Logger: zap.NewNop(), Context: t.Context(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) })}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := c.Status(ctx, "passthrough:///a")
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if !m.Votes() || !m.Leads() {
		t.Error("the only member does not vote, or not lead")
	}
	m.e.Server.HardStop()
	if m.Votes() || m.Leads() {
		t.Error("the member that has ended votes, or leads")
	}
	if err := ask(); status.Code(err) != codes.Unavailable {
		t.Errorf("the member that has ended answers with %v", err)
	}
}
