// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/watch"
)

// TestKubeletSocket follows a pod through the Pods API of a gRPC server, over a socket.
func TestKubeletSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pods-api.sock")
	l, err := net.Listen("unix", path)
	assert.NoError(t, err)
	k := newFakeKubelet()
	k.put(nodePod("web", "10.1.0.1"), false)
	k.serve(t, l)
	index := pods.NewIndex(90*time.Second, nil)
	config := watch.Config{OwnPods: index, PodSource: watch.PodsFromKubelet, Log: slog.New(slog.DiscardHandler), Now: time.Now}
	config.SetDial(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, path)
	})
	w, err := watch.New(config) // without a kubeconfig
	assert.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- w.Run(ctx) }()
	defer func() {
		cancel()
		assert.NoError(t, <-ran)
	}()
	soon := func(addr, want string) {
		t.Helper()
		proctest.Eventually(t, time.Minute, addr+" is "+want, func() bool { return owner(index, addr) == want })
	}
	soon("10.1.0.1", "web")
	k.put(nodePod("db", "10.1.0.2", "fd00::2"), false)
	soon("fd00::2", "db")
	k.remove("web")
	soon("10.1.0.1", "unknown")
}

// TestKubeletPods follows pods through what a kubelet sends, and does not send.
func TestKubeletPods(t *testing.T) {
	withHarness(t, func(h *harness) {
		index, k := h.watchKubelet(watch.PodsFromKubelet)
		k.put(nodePod("web", "10.1.0.1"), false)
		h.start()
		wantOwner(t, index, "10.1.0.1", "web")
		assert.Equal(t, "source", "kubelet", h.watch.Stats().PodSource)
		second := nodePod("second")
		k.put(second, false)
		second.Status.PodIPs = []corev1.PodIP{{IP: "10.1.0.2"}}
		k.put(second, false)
		h.pass(settleTime)
		wantOwner(t, index, "10.1.0.2", "second")
		// Labels change without an event.
		second.Labels = map[string]string{"node-cache.io/search-path": "off"}
		k.put(second, true)
		h.pass(80 * time.Second)
		p, stale := index.Of(netip.MustParseAddr("10.1.0.2"), time.Now())
		assert.Equal(t, "skip after the next list", true, p.DNS.Skip && !stale)
		now := metav1.Now()
		second.DeletionTimestamp = &now
		k.put(second, false)
		h.pass(settleTime)
		wantOwner(t, index, "10.1.0.2", "unknown")
		k.remove("second")
		k.put(nodePod("third", "10.1.0.2"), false)
		h.pass(settleTime)
		wantOwner(t, index, "10.1.0.2", "third")
		// A kubelet that has nothing to send.
		begun := k.calledTimes()
		h.pass(10 * time.Minute)
		wantOwner(t, index, "10.1.0.1", "web")
		assert.Equal(t, "calls in 10 minutes", 8, k.calledTimes()-begun)
		assert.Equal(t, "watches after the first", uint64(k.calledTimes()-1), h.watch.Stats().OwnPods.Restarts)
		// A kubelet restarts, and another pod has ended meanwhile.
		k.set(func() { k.absent, k.pods = true, k.pods[1:] })
		h.pass(10 * time.Second)
		wantOwner(t, index, "10.1.0.1", "web")
		h.pass(90 * time.Second)
		wantOwner(t, index, "10.1.0.1", "web stale")
		own := h.watch.Stats().OwnPods
		assert.Equal(t, "error", "unreachable: dial unix: no such file or directory", own.LastError)
		if own.Failures > 110 {
			t.Errorf("%d attempts in 100 s", own.Failures)
		}
		assert.Equal(t, "watches after the first, without a kubelet", uint64(k.calledTimes()-1), own.Restarts)
		k.set(func() { k.absent = false })
		h.pass(2 * time.Second)
		wantOwner(t, index, "10.1.0.1", "unknown")
		wantOwner(t, index, "10.1.0.2", "third")
		assert.Equal(t, "watches after the first, with the kubelet again", own.Restarts+1, h.watch.Stats().OwnPods.Restarts)
		assert.Equal(t, "requests to the API server", 0, len(h.server.Requests("")))
	})
}

// TestKubeletLies shows that whatever a program at the socket sends is refused in bounded time and space, and that the pods
// of the last complete list stay.
func TestKubeletLies(t *testing.T) {
	t.Parallel()
	endless := func(event podsv1alpha1.EventType, name func(int) string, listed bool) callHandler {
		return func(call podsv1alpha1.Pods_WatchPodsServer) error {
			if listed {
				_ = call.Send(podEvent(podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE, nil))
			}
			for i := 0; ; i++ {
				if err := call.Send(podEvent(event, nodePod(name(i), fmt.Sprintf("10.2.%d.%d", i>>8&255, i&255)))); err != nil {
					return err
				}
			}
		}
	}
	same, another := func(int) string { return "same" }, func(i int) string { return fmt.Sprint("pod", i) }
	send := func(event *podsv1alpha1.WatchPodsEvent) callHandler {
		return func(call podsv1alpha1.Pods_WatchPodsServer) error {
			_ = call.Send(event)
			<-call.Context().Done()
			return nil
		}
	}
	respond := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
	}
	tests := []struct {
		name   string
		conn   func(net.Conn)   // of a program without HTTP/2
		http   http.HandlerFunc // of a server without gRPC
		call   callHandler      // of a gRPC server
		want   string
		listed bool // it sends a list without pods
	}{
		{name: "does not read", conn: func(net.Conn) {}, want: "frozen: "},
		{name: "does not answer", conn: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, want: "frozen: "},
		{name: "closes", conn: func(c net.Conn) { _ = c.Close() }, want: "unreachable: "},
		{name: "sends rubbish", conn: func(c net.Conn) { _, _ = io.Copy(c, rand.Reader) }, want: "unreachable: "},
		{name: "is a server of HTTP/1", conn: func(c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		}, want: "unreachable: "},
		{name: "has no such page", http: http.NotFound, want: "unreadable: "},
		{name: "redirects", http: http.RedirectHandler("/", http.StatusFound).ServeHTTP, want: `server error: the kubelet ended the call with HTTP status 302`},
		{name: "ends within a message", http: respond("\x00\x00\x00\x00\x09\x08"), want: "unreachable: reading a message"},
		{name: "compresses", http: respond("\x01\x00\x00\x00\x00"), want: "unreadable: "},
		{name: "ends without a result", http: respond(""), want: "server error: the kubelet ended the call with HTTP status 200"},
		{name: "initializes", call: func(podsv1alpha1.Pods_WatchPodsServer) error {
			return status.Error(codes.FailedPrecondition, "Kubelet is initializing")
		}, want: `server error: the kubelet ended the call with gRPC status "9": "Kubelet is initializing"`},
		{name: "has a result of 1 MiB", call: func(podsv1alpha1.Pods_WatchPodsServer) error {
			return status.Error(codes.Internal, strings.Repeat("x", 1<<20))
		}, want: "unreachable: "},
		{name: "sends a part of the list", call: send(podEvent(podsv1alpha1.EventType_ADDED, nodePod("part", "10.1.0.2"))), want: "frozen: "},
		{name: "sends no pod", call: send(&podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_ADDED, Pod: []byte("rubbish")}), want: "unreadable: "},
		{name: "sends 9 MiB", call: send(&podsv1alpha1.WatchPodsEvent{Pod: make([]byte, 9<<20)}), want: "unreadable: "},
		{name: "sends pods without end", call: endless(podsv1alpha1.EventType_ADDED, another, false), want: "unreadable: the kubelet sent more than 2,048 pods"},
		{name: "sends a pod without end", call: endless(podsv1alpha1.EventType_ADDED, same, false), want: "unreadable: the kubelet sent too many"},
		{name: "adds pods without end", call: endless(podsv1alpha1.EventType_ADDED, another, true), want: "unreadable: the kubelet sent more than 2,048 pods", listed: true},
		{name: "changes a pod without end", call: endless(podsv1alpha1.EventType_MODIFIED, same, true), want: "unreadable: the kubelet sent too many", listed: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withHarness(t, func(h *harness) {
				index, k := h.watchKubelet(watch.PodsFromKubelet)
				k.put(nodePod("web", "10.1.0.1"), false)
				h.start()
				k.set(func() { k.conn, k.http, k.call = tt.conn, tt.http, tt.call })
				h.pass(5 * settleTime)
				if tt.want == "frozen: " {
					h.pass(10 * time.Second)
				}
				if got := h.watch.Stats().OwnPods.LastError; !strings.HasPrefix(got, tt.want) || len(got) > 32<<10 {
					t.Errorf("got error %.200q, want %q", got, tt.want)
				}
				if n := index.Stats(time.Now()).Pods; !tt.listed && n != 1 || n > 2049 {
					t.Errorf("%d pods", n)
				}
				k.set(func() { k.conn, k.http, k.call = nil, nil, nil })
				h.pass(12 * time.Second)
				wantOwner(t, index, "10.1.0.1", "web")
				assert.Equal(t, "pods", 1, index.Stats(time.Now()).Pods)
				assert.Equal(t, "error", "", h.watch.Stats().OwnPods.LastError)
			})
		})
	}
}

// TestKubeletOrServer shows when the pods come from which source.
func TestKubeletOrServer(t *testing.T) {
	withHarness(t, func(h *harness) {
		index, k := h.watchKubelet(watch.PodsFromEither)
		h.server.Put(nodePod("server", "10.1.0.1"))
		k.put(nodePod("kubelet", "10.1.0.1"), false)
		want := func(what, source, owner string) {
			t.Helper()
			assert.Equal(t, what+": source", source, h.watch.Stats().PodSource)
			wantOwner(t, index, "10.1.0.1", owner)
		}
		k.set(func() { k.absent = true })
		h.start()
		want("without a socket", "API server", "server")
		assert.Equal(t, "error", "", h.watch.Stats().OwnPods.LastError)
		h.pass(4 * time.Minute)
		want("without a socket for long", "API server", "server")
		k.set(func() { k.absent = false })
		h.pass(2 * time.Second)
		want("once there is a socket", "kubelet", "kubelet")
		requests := len(h.server.Requests(""))
		h.server.Kill()
		h.pass(4 * time.Minute)
		want("without an API server", "kubelet", "kubelet")
		h.server.Revive()
		k.set(func() { k.absent = true })
		h.pass(10 * time.Second)
		want("while the kubelet restarts", "kubelet", "kubelet")
		assert.Equal(t, "requests to the API server", requests, len(h.server.Requests("")))
		h.pass(90 * time.Second)
		want("without a kubelet for long", "API server", "server")
		wantLog := []string{"API server", "kubelet", "API server"}
		assert.Same(t, "sources in the log", wantLog, sourcesIn(h.log.String()))
	})
}

// sourcesIn returns the sources that a log names.
func sourcesIn(log string) (sources []string) {
	for line := range strings.Lines(log) {
		if _, source, ok := strings.Cut(strings.TrimSpace(line), `msg="pods of the node watched" source=`); ok {
			sources = append(sources, strings.Trim(source, `"`))
		}
	}
	return sources
}
