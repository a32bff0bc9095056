// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/watch"
)

// TestLongTexts has the API server send long texts wherever one reaches an error. The reason is reported, and neither the state nor
// the log has more than the beginning.
func TestLongTexts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256<<10)
	status := func(code int, reason metav1.StatusReason) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: long[:32<<10],
			})
		}
	}
	event := func(object string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(object))
			if r.URL.Query().Get("watch") != "" { // a watch stays open, and its end would be another error
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
		}
	}
	tests := []struct {
		name   string
		answer http.Handler
		most   int64  // bytes of a response, if it is endless
		want   string // a regular expression
	}{
		{"an endless error", &endlessError{code: http.StatusInternalServerError}, 1 << 20, "server error: "},
		{"an endless refusal", &endlessError{code: http.StatusForbidden}, 1 << 20, "forbidden: "},
		{"a long message", status(http.StatusInternalServerError, metav1.StatusReasonInternalError), 0, "server error: xxxx"},
		{"a long message of a refusal", status(http.StatusForbidden, metav1.StatusReasonForbidden), 0, "forbidden: xxxx"},
		{"a long header", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", long)
			w.WriteHeader(http.StatusServiceUnavailable)
		}), 0, "unreachable: "},
		{
			"a long error within a watch",
			event(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"reason":"` + long + `","message":"` + long + `"}}`), 0, `server error(: |" err=")xxxx`,
		},
		{
			"an error within a watch that is a long object",
			event(`{"type":"ERROR","object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"` + long + `"}}}`), 0, `server error(: |" err=")the server sent an error without a status`,
		},
		{
			"an object of another namespace with a long name",
			event(`{"type":"ADDED","object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"` + long + `","namespace":"other","resourceVersion":"7"}}}`), 0, "",
		},
		{
			"a long text that is no time",
			event(`{"type":"ADDED","object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"a","creationTimestamp":"` + long + `"}}}`), 0, "unreadable: ",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withHarness(t, func(w *harness) {
				w.config.Namespaces = []string{"shop"}
				w.server.Put(serviceObject("web", "10.0.0.1"))
				w.server.Answer("services", tt.answer.ServeHTTP)
				w.start()
				longest := 0
				var errs []string
				for range 200 {
					w.pass(100 * time.Millisecond)
					text := w.kind(zone.Services).LastError
					longest = max(longest, len(text))
					errs = append(errs, text)
				}
				if longest > remote.MaxText {
					t.Errorf("an error of %d bytes", longest)
				}
				// A list follows a failed watch at once, and its error replaces that of the watch. The log has both.
				if all := strings.Join(append(errs, w.log.String()), "\n"); !regexp.MustCompile(tt.want).MatchString(all) {
					t.Errorf("errors and log %.2000s, want %q", all, tt.want)
				}
				if n := len(w.log.String()); n > 64<<10 || n == 0 {
					t.Errorf("the log has %d bytes", n)
				}
				if e, ok := tt.answer.(*endlessError); ok && e.sent.Load() > tt.most {
					t.Errorf("%d bytes read of an error", e.sent.Load())
				}
				w.server.Answer("services", nil)
				w.wantSoon("web.shop.svc", "10.0.0.1", time.Minute)
			})
		})
	}
}

// An endlessError sends an error whose body does not end.
type endlessError struct {
	endless

	code int
}

func (e *endlessError) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.code)
	e.more = bytes.Repeat([]byte("x"), 64<<10)
	e.endless.ServeHTTP(w, r)
}

// TestEventError cuts what an event of type Error carries.
func TestEventError(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 8<<20)
	causes := make([]metav1.StatusCause, 100_000)
	for i := range causes {
		causes[i] = metav1.StatusCause{Type: metav1.CauseType(long), Message: long, Field: long}
	}
	err := watch.EventError(&metav1.Status{Reason: metav1.StatusReason(long), Message: long, Details: &metav1.StatusDetails{Name: long, Causes: causes}})
	text, jsonErr := json.Marshal(err)
	assert.NoError(t, jsonErr)
	if len(err.Error()) > remote.MaxText || len(text) > 32<<10 {
		t.Errorf("%d bytes of text, %d in all", len(err.Error()), len(text))
	}
	err = watch.EventError(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: long}})
	if len(err.Error()) > remote.MaxText {
		t.Errorf("%d bytes of text", len(err.Error()))
	}
}
