package usernettest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// manyCases open many connections, in sequence and concurrently.
func manyCases() []Case {
	cases := append(forFamilies("many/one-after-the-other", sequential, Helper), forFamilies("many/failing", refused, Helper)...)
	for _, d := range []Direction{Out, In} {
		c := Case{Name: "many/at-once/" + string(d), Check: func(x *T, s *Env) { concurrent(x, s, d) }}
		if d == In {
			c.Needs = []Ability{Inbound}
		}
		cases = append(cases, c)
	}
	return cases
}

// sequential opens and closes connections, and checks that the helper keeps nothing of
// them.
func sequential(x *T, s *Env, f Family) {
	n := scaled(x.Settings, 1000, fewerForV6(f, 5000, 2000), 10_000)
	l, to := x.service(s, Out, f)
	go echoServer(l)
	hello := func() error {
		c, err := (&net.Dialer{KeepAlive: -1}).DialContext(x.ctx, "tcp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(x.deadline())
		if _, err := io.WriteString(c, "hello"); err != nil {
			return err
		}
		c.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
			return fmt.Errorf("received %q: %w", got, err)
		}
		return nil
	}
	x.Must(s.Container.NS.Do(hello)) // resources allocated once do not count
	x.checkNoLeak(s, func() {
		x.Must(s.Container.NS.Do(func() error {
			for i := range n {
				if err := hello(); err != nil {
					return fmt.Errorf("connection %d: %w", i, err)
				}
			}
			return nil
		}))
	})
}

// echoServer echoes on every connection until the listener closes.
func echoServer(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(onlyWriter{c}, onlyReader{c})
		}()
	}
}

// refused is sequential with connections that are refused.
func refused(x *T, s *Env, f Family) {
	to := remoteAddr(f, remoteServer).String()
	refuse := func() error {
		_, err := (&net.Dialer{}).DialContext(x.ctx, "tcp", net.JoinHostPort(to, "9"))
		if err == nil {
			return errors.New("connected where nobody listens")
		}
		return nil
	}
	x.Must(s.Container.NS.Do(refuse))
	x.checkNoLeak(s, func() {
		x.Must(s.Container.NS.Do(func() error {
			for range 500 {
				if err := refuse(); err != nil {
					return err
				}
			}
			return nil
		}))
	})
}

// checkNoLeak checks that the helper has as many descriptors after f as before, and notes
// its memory.
func (x *T) checkNoLeak(s *Env, f func()) {
	pid := s.Proc.PID()
	before, err := x.stableDescriptors(pid)
	x.Must(err)
	memory := residentBytes(pid)
	f()
	// A few may be kept for later use, but not one for each connection.
	const spare = 20
	x.Await(func() error {
		after, err := descriptors(pid)
		if err == nil && after > before+spare {
			err = fmt.Errorf("the helper has %d descriptors, %d before", after, before)
		}
		return err
	})
	x.Notef("helper's memory %d KiB, %d KiB before", residentBytes(pid)>>10, memory>>10)
}

// stableDescriptors waits until the number of the helper's descriptors no longer changes,
// and returns it. Closing those of earlier cases may take a moment.
func (x *T) stableDescriptors(pid int) (int, error) {
	last, same := -1, 0
	err := await(x.ctx, func() error {
		now, err := descriptors(pid)
		if err != nil {
			return err
		}
		if now != last {
			last, same = now, 0
		}
		if same++; same < 50 {
			return errors.New("descriptors come and go")
		}
		return nil
	})
	return last, err
}

// concurrent lets many streams run until they have moved a total, and computes how
// evenly.
func concurrent(x *T, s *Env, d Direction) {
	streams := scaled(x.Settings, 16, 64, 1024)
	total := scaled[int64](x.Settings, 64<<20, 256<<20, 4<<30)
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	moved := make([]atomic.Int64, streams)
	var sum atomic.Int64
	var wg sync.WaitGroup
	begin := make(chan struct{})
	l, to := x.service(s, d, V4)
	for i := range streams {
		c := x.dialTCP(s.client(d), to)
		server, err := l.AcceptTCP()
		x.Must(err)
		closeAfter(x, server)
		// The stream's writer may have stopped with nothing left to read.
		defer context.AfterFunc(ctx, func() { server.SetReadDeadline(time.Unix(1, 0)) })()
		wg.Add(2)
		go func() {
			defer wg.Done()
			<-begin
			buf := make([]byte, 64<<10)
			for ctx.Err() == nil {
				if _, err := c.Write(buf); err != nil {
					return
				}
			}
		}()
		go func() {
			defer wg.Done()
			buf := make([]byte, 64<<10)
			for ctx.Err() == nil {
				n, err := server.Read(buf)
				moved[i].Add(int64(n))
				if sum.Add(int64(n)) >= total || err != nil {
					cancel()
				}
			}
			server.Close()
		}()
	}
	close(begin)
	<-ctx.Done()
	if got := sum.Load(); got < total {
		x.Fatalf("moved %d of %d bytes", got, total)
	}
	at := make([]float64, streams)
	for i := range at {
		at[i] = float64(moved[i].Load())
		if at[i] == 0 {
			x.Errorf("stream %d starved", i)
		}
	}
	x.Notef("fairness of %d streams (Jain) %.3f", streams, jain(at))
	// Writers end when their server closes.
	wg.Wait()
}

// jain returns Jain's fairness index: 1 if all are equal, 1/n if one has everything.
func jain(v []float64) float64 {
	var sum, squares float64
	for _, x := range v {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(v)) * squares)
}
