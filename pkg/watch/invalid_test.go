// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
)

// An endless handler sends head once and then more until the client closes. sent is the size of one response.
type endless struct {
	media, encoding string
	head, more      []byte
	sent            atomic.Int64 // of the largest response, in bytes
}

func (e *endless) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", e.media)
	if e.encoding != "" {
		w.Header().Set("Content-Encoding", e.encoding)
	}
	n, err := w.Write(e.head)
	for total := int64(n); err == nil; total += int64(n) {
		e.sent.Store(max(e.sent.Load(), total))
		n, err = w.Write(e.more)
	}
}

// bomb returns n spaces, compressed to a thousandth of that.
func bomb(t *testing.T, n int) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(bytes.Repeat([]byte(" "), n)); err != nil {
		t.Fatal(err)
	}
	assert.NoError(t, w.Close())
	return buf.Bytes()
}

// TestEndlessResponses has the server answer endlessly for Services. The client reads no more than the bounds and reports
// the reason. The other kinds work, and once the server recovers, the state is right.
func TestEndlessResponses(t *testing.T) {
	t.Parallel()
	const (
		maxList  = 1 << 20
		maxEvent = 8 << 20
		slack    = 1 << 20 // in pipes and buffers
	)
	filler := bytes.Repeat([]byte("x"), 64<<10)
	page := `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"more"},"items":[` +
		`{"metadata":{"name":"web","namespace":"shop","annotations":{"a":"` + strings.Repeat("x", 10_000) + `"}}}]}`
	tests := []struct {
		name  string
		lists bool // plain lists
		body  endless
		most  int64  // bytes of a response
		want  string // error
	}{
		{
			name: "an event in JSON", body: endless{media: "application/json", head: []byte(`{"type":"ADDED","object":{"kind":"`), more: filler},
			most: maxEvent + slack, want: "event larger than 8 MiB",
		},
		{
			name: "spaces in JSON", body: endless{media: "application/json", more: bytes.Repeat([]byte("\n"), 64<<10)},
			most: maxEvent + slack, want: "event larger than 8 MiB",
		},
		{
			name: "an event in protobuf", body: endless{media: "application/vnd.kubernetes.protobuf;stream=watch", head: []byte("\xff\xff\xff\xff"), more: filler},
			most: maxEvent + slack, want: "event larger than 8 MiB",
		},
		{
			name: "spaces in JSON, compressed", body: endless{media: "application/json", encoding: "gzip", more: bomb(t, 64<<20)},
			most: 64 << 10, want: "event larger than 8 MiB",
		},
		{name: "a list", lists: true, body: endless{media: "application/json", head: []byte(`{"items":["`), more: filler}, most: maxList + slack, want: "a list larger than the limit"},
		{name: "a list of spaces, compressed", lists: true, body: endless{media: "application/json", encoding: "gzip", more: bomb(t, 64<<20)}, most: 64 << 10, want: "a list larger than the limit"},
		{name: "an error", body: endless{media: "application/json", head: []byte("{"), more: filler}, most: 64<<10 + slack, want: "watch failed"},
		{name: "pages", lists: true, body: endless{media: "application/json", head: []byte(page)}, want: "a list larger than the limit"},
	}
	for i := range tests {
		tt := &tests[i]
		t.Run(tt.name, func(t *testing.T) {
			withHarness(t, func(w *harness) {
				w.config.MaxList = maxList
				w.server.Put(serviceObject("web", "10.0.0.1"))
				if tt.lists {
					w.server.WithoutLists()
				}
				pages := 0
				w.server.Answer("services", func(rw http.ResponseWriter, r *http.Request) {
					watches := r.URL.Query().Get("watch") != ""
					switch {
					case tt.lists && watches:
						http.Error(rw, "no watches", http.StatusUnprocessableEntity)
					case tt.name == "pages":
						pages++
						rw.Header().Set("Content-Type", tt.body.media)
						_, _ = rw.Write(tt.body.head)
					case tt.name == "an error":
						rw.WriteHeader(http.StatusBadGateway)
						tt.body.ServeHTTP(rw, r)
					default:
						tt.body.ServeHTTP(rw, r)
					}
				})
				w.start()
				w.pass(10 * time.Second)
				w.want("web.shop.svc", "not ready")
				if k := w.kind(zone.Services); k.LastError == "" || k.Failures == 0 || !strings.Contains(w.log.String(), tt.want) {
					t.Errorf("%d failures, the last %q, want %q in the log\n%s", k.Failures, k.LastError, tt.want, w.log.String())
				}
				if k := w.kind(zone.Namespaces); !k.Synced || k.LastError != "" {
					t.Errorf("namespaces: %+v", k)
				}
				if n := tt.body.sent.Load(); n > tt.most {
					t.Errorf("%d bytes read of a response, want %d at most", n, tt.most)
				}
				if attempts := 10; pages > attempts*(maxList/len(page)+1) {
					t.Errorf("%d pages", pages)
				}
				w.server.Answer("services", nil)
				w.wantSoon("web.shop.svc", "10.0.0.1", 2*resumeTime)
				w.pass(resumeTime)
				w.want("none.shop.svc", "NXDOMAIN")
			})
		})
	}
}

// TestInvalidServer sends events that no server has a reason to send. They are applied or ignored, and the state is soon
// right again.
func TestInvalidServer(t *testing.T) {
	t.Parallel()
	version := func(o *corev1.Service, v string) *corev1.Service {
		o.SetResourceVersion(v)
		return o
	}
	foreign := version(serviceObject("foreign", "10.0.0.7"), "9")
	foreign.Namespace = "other"
	tests := []struct {
		name  string
		send  func(w *harness)
		error string // reported until the state is confirmed again; empty: none
	}{
		{"deletion of an unknown object", func(w *harness) { w.server.Send("DELETED", version(serviceObject("none", ""), "101")) }, ""},
		{"bookmark with a future version", func(w *harness) {
			w.server.Send("BOOKMARK", &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "4611686018427387904"}})
		}, ""},
		{"object with a future version", func(w *harness) {
			w.server.Send("MODIFIED", version(serviceObject("web", "10.0.0.1"), "4611686018427387904"))
		}, ""},
		{"object with an old version", func(w *harness) { w.server.Send("MODIFIED", version(serviceObject("web", "10.0.0.1"), "1")) }, ""},
		{"version that is not a number", func(w *harness) { w.server.Send("MODIFIED", version(serviceObject("web", "10.0.0.1"), "x")) }, ""},
		{"an object of another namespace", func(w *harness) { w.server.Send("ADDED", foreign) }, "was not requested: other/foreign"},
		{"event of an unknown type", func(w *harness) { w.server.Send("CHANGED", version(serviceObject("web", "10.0.0.9"), "9")) }, ""},
		{"410 ten times", func(w *harness) {
			for range 10 {
				w.server.Forget()
				w.pass(time.Second)
			}
		}, ""},
		{"429 for a day", func(w *harness) {
			w.server.Answer("services", func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Retry-After", "86400")
				http.Error(rw, "later", http.StatusTooManyRequests)
			})
			w.server.CloseWatches()
			w.pass(10 * time.Second)
			w.server.Answer("services", nil)
		}, "busy: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withHarness(t, func(w *harness) {
				w.config.Namespaces = []string{"shop"}
				w.config.StaleAfter = 10 * time.Second
				w.server.Put(serviceObject("web", "10.0.0.1"))
				w.start()
				w.pass(time.Minute)
				tt.send(w)
				w.pass(settleTime)
				if k := w.kind(zone.Services); !strings.Contains(k.LastError, tt.error) || tt.error != "" && k.Failures == 0 {
					t.Errorf("%d failures, the last %q, want %q in it", k.Failures, k.LastError, tt.error)
				}
				w.server.Put(serviceObject("new", "10.0.0.2"))
				took := w.wantSoon("new.shop.svc", "10.0.0.2", 40*time.Second)
				t.Logf("recovered after %s", took)
				w.pass(2 * resumeTime)
				w.want("web.shop.svc", "10.0.0.1")
				w.want("none.shop.svc", "NXDOMAIN")
				w.want("foreign.other.svc", "NXDOMAIN")
				if k := w.kind(zone.Services); k.LastError != "" {
					t.Errorf("counts %+v", k)
				}
				w.wantCalm(4)
			})
		})
	}
}
