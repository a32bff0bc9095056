// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"context"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/watch"
)

// A callHandler answers a call of WatchPods.
type callHandler = func(podsv1alpha1.Pods_WatchPodsServer) error

// A fakeKubelet serves the Pods API as a kubelet does: an event for each change of a status, and none for one of labels.
type fakeKubelet struct {
	podsv1alpha1.UnimplementedPodsServer

	grpc, plain, raw *bufconn.Listener // of the server, and for http and conn

	mu     sync.Mutex       // guards the following fields
	absent bool             // there is no socket
	conn   func(net.Conn)   // takes the connections; nil: a server
	http   http.HandlerFunc // answers the requests instead of the gRPC server; nil: none
	call   callHandler      // answers the calls; nil: the pods
	pods   []*corev1.Pod
	calls  map[chan *podsv1alpha1.WatchPodsEvent]struct{}
	begun  int // calls
}

// pipeSize is the buffer of a connection, in bytes.
const pipeSize = 64 << 10

func newFakeKubelet() *fakeKubelet {
	return &fakeKubelet{
		grpc: bufconn.Listen(pipeSize), plain: bufconn.Listen(pipeSize), raw: bufconn.Listen(pipeSize),
		calls: make(map[chan *podsv1alpha1.WatchPodsEvent]struct{}),
	}
}

// serve serves the Pods API at a listener until the test ends.
func (k *fakeKubelet) serve(t *testing.T, l net.Listener) {
	t.Helper()
	server := grpc.NewServer()
	podsv1alpha1.RegisterPodsServer(server, k)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		assert.NoError(t, <-done)
	})
}

// servePlain serves the field http until the test ends.
func (k *fakeKubelet) servePlain(t *testing.T) {
	t.Helper()
	server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		answer := k.http
		k.mu.Unlock()
		answer(w, r)
	})}
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan error, 1)
	go func() { done <- server.Serve(k.plain) }()
	t.Cleanup(func() {
		_ = server.Close()
		assert.Equal(t, "end", http.ErrServerClosed, <-done)
	})
}

// dial connects to what is at the socket.
func (k *fakeKubelet) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.absent || addr != watch.PodsSocket {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ENOENT}
	}
	switch {
	case k.conn != nil:
		go k.takeConn(k.conn)
		return k.raw.DialContext(ctx)
	case k.http != nil:
		return k.plain.DialContext(ctx)
	default:
		return k.grpc.DialContext(ctx)
	}
}

func (k *fakeKubelet) takeConn(do func(net.Conn)) {
	if conn, err := k.raw.Accept(); err == nil {
		do(conn)
	}
}

// set changes the kubelet, and ends its calls.
func (k *fakeKubelet) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	for call := range k.calls {
		close(call)
	}
	clear(k.calls)
}

// put adds or replaces a pod, and sends the event. A change of labels has none.
func (k *fakeKubelet) put(p *corev1.Pod, silently bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kind := podsv1alpha1.EventType_ADDED
	for i, old := range k.pods {
		if old.Name == p.Name {
			k.pods, kind = append(k.pods[:i:i], k.pods[i+1:]...), podsv1alpha1.EventType_MODIFIED
			break
		}
	}
	k.pods = append(k.pods, p.DeepCopy())
	if !silently {
		k.sendLocked(kind, p)
	}
}

// remove removes a pod, and sends the event.
func (k *fakeKubelet) remove(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, p := range k.pods {
		if p.Name == name {
			k.pods = append(k.pods[:i:i], k.pods[i+1:]...)
			gone := &corev1.Pod{}
			gone.Namespace, gone.Name, gone.UID = p.Namespace, p.Name, p.UID
			k.sendLocked(podsv1alpha1.EventType_DELETED, gone)
			return
		}
	}
}

func (k *fakeKubelet) sendLocked(kind podsv1alpha1.EventType, p *corev1.Pod) {
	for call := range k.calls {
		call <- podEvent(kind, p)
	}
}

// podEvent returns an event. p may be nil.
func podEvent(kind podsv1alpha1.EventType, p *corev1.Pod) *podsv1alpha1.WatchPodsEvent {
	e := &podsv1alpha1.WatchPodsEvent{Type: kind}
	if p != nil {
		e.Pod, _ = p.Marshal() // never fails
	}
	return e
}

// calledTimes returns how many watches have begun.
func (k *fakeKubelet) calledTimes() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.begun
}

// WatchPods implements the Pods API.
func (k *fakeKubelet) WatchPods(_ *podsv1alpha1.WatchPodsRequest, stream podsv1alpha1.Pods_WatchPodsServer) error {
	call := make(chan *podsv1alpha1.WatchPodsEvent, 100)
	k.mu.Lock()
	answer, all := k.call, k.pods
	k.calls[call] = struct{}{}
	k.begun++
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.calls, call)
		k.mu.Unlock()
	}()
	if answer != nil {
		return answer(stream)
	}
	for _, p := range all {
		if err := stream.Send(podEvent(podsv1alpha1.EventType_ADDED, p)); err != nil {
			return err
		}
	}
	if err := stream.Send(podEvent(podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE, nil)); err != nil {
		return err
	}
	for {
		select {
		case event, ok := <-call:
			if !ok {
				return status.Error(codes.ResourceExhausted, "watch client channel closed")
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// watchKubelet makes the watch fill an index with the pods of a kubelet.
func (h *harness) watchKubelet(source watch.PodSource) (*pods.Index, *fakeKubelet) {
	index, k := h.watchPods(), newFakeKubelet()
	h.config.PodSource = source
	k.serve(h.t, k.grpc)
	k.servePlain(h.t)
	h.config.SetDial(func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network == "unix" {
			return k.dial(ctx, network, addr)
		}
		return h.server.Dial(ctx, network, addr)
	})
	return index, k
}
