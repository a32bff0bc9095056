// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/names/skydns"
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/retry"
)

// hostile is an etcd whose answers a test chooses.
type hostile struct {
	etcdserverpb.UnimplementedKVServer
	etcdserverpb.UnimplementedWatchServer
	etcdserverpb.UnimplementedAuthServer

	token  string // for any user; empty: clients send none
	read   func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse
	watch  func(start int64, stream etcdserverpb.Watch_WatchServer) error // until the client ends it
	starts chan int64                                                     // the start revisions of watches

	fails  error         // of each read; nil: none
	adjust func(*Client) // changes the client's times before it runs; nil: none
	log    io.Writer     // of the client; nil: none
}

func (h *hostile) Range(_ context.Context, q *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	if h.fails != nil {
		return nil, h.fails
	}
	return h.read(q), nil
}

func (h *hostile) Watch(stream etcdserverpb.Watch_WatchServer) error {
	q, err := stream.Recv()
	if err != nil {
		return err
	}
	start := q.GetCreateRequest().GetStartRevision()
	h.starts <- start
	return h.watch(start, stream)
}

func (h *hostile) Authenticate(context.Context, *etcdserverpb.AuthenticateRequest) (*etcdserverpb.AuthenticateResponse, error) {
	return &etcdserverpb.AuthenticateResponse{Token: h.token}, nil
}

// records answers each request with the same keys and values, at revision 7.
func records(values ...string) func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
	return func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
		r := &etcdserverpb.RangeResponse{Header: header(7)}
		for i := 0; i < len(values); i += 2 {
			r.Kvs = append(r.Kvs, &mvccpb.KeyValue{Key: []byte(values[i]), Value: []byte(values[i+1])})
		}
		return r
	}
}

func header(revision int64) *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{Revision: revision}
}

// follows begins a watch, then sends the responses, then answers each check.
func follows(responses ...*etcdserverpb.WatchResponse) func(int64, etcdserverpb.Watch_WatchServer) error {
	return func(start int64, stream etcdserverpb.Watch_WatchServer) error {
		all := append([]*etcdserverpb.WatchResponse{{Header: header(start), Created: true}}, responses...)
		for {
			for _, r := range all {
				if err := stream.Send(r); err != nil {
					return err
				}
			}
			all = []*etcdserverpb.WatchResponse{{Header: header(start + 1)}}
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
	}
}

// start runs a client of h, or of an address.
func (h *hostile) start(t *testing.T, addr string) *Client {
	t.Helper()
	h.starts = make(chan int64, 1000)
	if addr == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		assert.NoError(t, err)
		s := grpc.NewServer(grpc.MaxSendMsgSize(1 << 30))
		etcdserverpb.RegisterKVServer(s, h)
		etcdserverpb.RegisterWatchServer(s, h)
		etcdserverpb.RegisterAuthServer(s, h)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		addr = l.Addr().String()
	}
	source, err := skydns.New(skydns.Config{Prefix: "/skydns/", Zones: []string{"sky.test."}})
	assert.NoError(t, err)
	cfg := Config{Endpoints: []string{"http://" + addr}, Prefix: "/skydns/", Source: source, Log: slog.New(slog.DiscardHandler)}
	if h.token != "" {
		cfg.User, cfg.PasswordFile = "user", os.DevNull
	}
	if h.log != nil {
		cfg.Log = slog.New(slog.NewTextHandler(h.log, nil))
	}
	c := New(cfg)
	c.wait, c.period, c.readTime = retry.Backoff{First: 10 * time.Millisecond, Last: 10 * time.Millisecond}, 2*time.Second, 2*time.Second
	if h.adjust != nil {
		h.adjust(c)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		_ = c.Run(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if c.Stats().Panics > 0 {
			t.Error("the client panicked")
		}
	})
	return c
}

// await waits for a state of the client.
func await(t *testing.T, c *Client, what string, state func(Stats) bool) {
	t.Helper()
	proctest.Eventually(t, time.Minute, what, func() bool { return state(c.Stats()) }, func() string { return fmt.Sprintf("%+v", c.Stats()) })
}

const one = `{"host": "10.0.0.1"}`

// TestHostileRead reads from servers that send keys without an end or an order, values that are too large, or nothing.
func TestHostileRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		read func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse
		want string // the error
	}{
		{"keys without an end", func(q *etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
			r := &etcdserverpb.RangeResponse{Header: header(7), More: true}
			for i := range q.Limit {
				r.Kvs = append(r.Kvs, &mvccpb.KeyValue{Key: fmt.Appendf(slices.Clip(q.Key), "%05d", i), Value: []byte(one)})
			}
			return r
		}, "deadline"},
		{"the same page again", func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
			return &etcdserverpb.RangeResponse{Header: header(7), More: true, Kvs: []*mvccpb.KeyValue{{Key: []byte("/skydns/test/sky/a"), Value: []byte(one)}}}
		}, errOrder.Error()},
		{"pages of two clusters", func(q *etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
			r := &etcdserverpb.RangeResponse{Header: header(7), More: true, Kvs: []*mvccpb.KeyValue{{Key: append(q.Key, 'x'), Value: []byte(one)}}}
			r.Header.ClusterId = 1 + uint64(q.Revision)
			return r
		}, errOther.Error()},
		{"a value above every limit", records("/skydns/test/sky/a", strings.Repeat("x", 8<<20)), "larger than max"},
		{"no answer", func(*etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
			time.Sleep(3 * time.Second)
			return nil
		}, "deadline"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := (&hostile{read: tt.read}).start(t, "")
			await(t, c, "two attempts fail", func(s Stats) bool { return s.Failures > 1 && strings.Contains(s.LastError, tt.want) })
			if c.Stats().Synced {
				t.Error("the source has records of a read that failed")
			}
		})
	}
	t.Run("rubbish", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		assert.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, strings.Repeat("rubbish", 1000))
				_ = conn.Close()
			}
		}()
		await(t, (&hostile{}).start(t, l.Addr().String()), "two attempts fail", func(s Stats) bool { return s.Failures > 1 && s.LastError != "" })
	})
}

// TestHostileToken authenticates with servers whose tokens are no header, or too large.
func TestHostileToken(t *testing.T) {
	t.Parallel()
	for token, want := range map[string]string{"a\nb": "non-printable", strings.Repeat("x", 5<<20): "larger than max"} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			c := (&hostile{token: token, read: records("/skydns/test/sky/a", one)}).start(t, "")
			await(t, c, "two attempts fail", func(s Stats) bool { return s.Failures > 1 && strings.Contains(s.LastError, want) })
		})
	}
}

// TestLargeValues reads values that do not fit one message together, one of which is too large for a record.
func TestLargeValues(t *testing.T) {
	t.Parallel()
	all := []string{
		"/skydns/test/sky/a", one, "/skydns/test/sky/b", `{"text": "` + strings.Repeat("b", 1_400_000) + `"}`,
		"/skydns/test/sky/c", strings.Repeat("c", 1_400_000), "/skydns/test/sky/d", strings.Repeat("d", 1_400_000), "/skydns/test/sky/e", one,
	}
	h := &hostile{watch: follows(), read: func(q *etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
		r := records(all...)(q)
		for len(r.Kvs) > 0 && string(r.Kvs[0].Key) < string(q.Key) {
			r.Kvs = r.Kvs[1:]
		}
		if r.More = int64(len(r.Kvs)) > q.Limit; r.More {
			r.Kvs = r.Kvs[:q.Limit]
		}
		return r
	}}
	h.adjust = func(c *Client) { c.period, c.readTime = timeout, time.Minute } // a page is 4 MiB: slow with the race detector
	await(t, h.start(t, ""), "two records are served", func(s Stats) bool { return s.Records == 2 && s.Invalid == 3 && s.LastError == "" })
}

// TestHostileWatch follows servers that send invalid events, events that are too large, or nothing.
func TestHostileWatch(t *testing.T) {
	t.Parallel()
	put := func(key, value string, revision int64) *etcdserverpb.WatchResponse {
		return &etcdserverpb.WatchResponse{Header: header(revision), Events: []*mvccpb.Event{
			{Kv: &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: revision}},
		}}
	}
	for _, tt := range []struct {
		name  string
		watch func(int64, etcdserverpb.Watch_WatchServer) error
		again bool // all keys are read again; else the watch goes on after the last revision
		want  int64
	}{
		{name: "an event without a key", watch: follows(&etcdserverpb.WatchResponse{Header: header(8), Events: []*mvccpb.Event{nil, {}}}), again: true, want: 8},
		{name: "an event that is too large", watch: follows(put("/skydns/test/sky/a", strings.Repeat("x", 5<<20), 8)), again: true, want: 8},
		{name: "an older revision", watch: follows(put("/skydns/test/sky/b", one, 9), &etcdserverpb.WatchResponse{Header: header(3)}), again: true, want: 8},
		{name: "the end of the watch", watch: follows(&etcdserverpb.WatchResponse{Header: header(8), Canceled: true}), again: true, want: 8},
		{name: "the end of the connection", watch: func(_ int64, stream etcdserverpb.Watch_WatchServer) error {
			_ = stream.Send(put("/skydns/test/sky/b", one, 9))
			return io.ErrUnexpectedEOF
		}, want: 10},
		{name: "silence", watch: func(_ int64, stream etcdserverpb.Watch_WatchServer) error {
			_ = stream.Send(put("/skydns/test/sky/b", one, 9))
			<-stream.Context().Done()
			return nil
		}, want: 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var good atomic.Bool
			h := &hostile{read: records("/skydns/test/sky/a", one), watch: func(start int64, stream etcdserverpb.Watch_WatchServer) error {
				if good.Swap(true) {
					return follows()(start, stream)
				}
				return tt.watch(start, stream)
			}}
			c := h.start(t, "")
			assert.Equal(t, "start of the first watch", 8, <-h.starts)
			assert.Equal(t, "start of the second watch", tt.want, <-h.starts)
			await(t, c, "the watch goes on", func(s Stats) bool { return s.LastError == "" && s.Records > 0 })
			want := uint64(1)
			if tt.again {
				want = 2
			}
			assert.Equal(t, "reads of all keys", want, c.Stats().Reads)
		})
	}
}

// TestHangUp has an etcd end each watch at once, and another one refuse all: the pauses grow, as with one that is away.
func TestHangUp(t *testing.T) {
	t.Parallel()
	h := &hostile{read: records("/skydns/test/sky/a", one), watch: func(start int64, stream etcdserverpb.Watch_WatchServer) error {
		_ = stream.Send(&etcdserverpb.WatchResponse{Header: header(start), Created: true})
		return status.Error(codes.Unavailable, "gone")
	}}
	h.adjust = func(c *Client) { c.wait = retry.Backoff{First: 20 * time.Millisecond, Last: time.Minute} }
	h.start(t, "")
	began := time.Now()
	for range 6 {
		<-h.starts
	}
	if took := time.Since(began); took < 600*time.Millisecond { // 20 + 40 + 80 + 160 + 320 ms
		t.Errorf("six watches within %s", took)
	}
}

// TestLongErrors has an etcd send errors of up to 14 MiB: the state has their beginning.
func TestLongErrors(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]*hostile{
		"a read":                               {fails: status.Error(codes.Internal, strings.Repeat("x", 14<<20))},
		"a read, within the bound of a header": {fails: status.Error(codes.Internal, strings.Repeat("x", 20<<10))},
		"the end of a watch": {read: records("/skydns/test/sky/a", one), watch: follows(&etcdserverpb.WatchResponse{
			Header: header(9), Canceled: true, CancelReason: strings.Repeat("x", 3<<20),
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log proctest.Output
			h.log = &log
			c := h.start(t, "")
			await(t, c, "an error is counted, or all keys are read again", func(st Stats) bool { return st.Failures > 0 || st.Reads > 1 })
			if n := len(c.Stats().LastError); n > remote.MaxText {
				t.Errorf("an error of %d bytes", n)
			}
			if n := len(log.String()); n > 8<<10 {
				t.Errorf("the log has %d bytes", n)
			}
		})
	}
}
