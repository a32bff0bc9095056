// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/pkg/watch"
)

// A fakeAPI is an API server in memory, with one ConfigMap and the written Events. It is its own transport.
type fakeAPI struct {
	mu       sync.Mutex // guards the following fields
	version  int
	object   *corev1.ConfigMap
	history  []change // since the oldest version
	oldest   int
	watches  map[*io.PipeWriter]bool
	away     bool // no connection can be made
	hangs    bool // requests are not answered
	deny     int  // status of every answer; 0: none
	denyWith string
	calls    []string // "list", "watch 12", "POST", "PATCH", in order
	open     int      // requests of the ConfigMap under way
	most     int      // at the same time
	events   []map[string]any
	noEvents int                      // status of the answers to events; 0: they are written
	trap     func(*http.Request) bool // reports whether the transport panics for a request; nil: never
}

// A change is an event of the history.
type change struct {
	version int
	text    string
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{version: 10, watches: map[*io.PipeWriter]bool{}}
}

// dial replaces watch.NewClient.
func (f *fakeAPI) dial(string, string) (*watch.Client, error) {
	return watch.ClientOver(&http.Client{Transport: f}, "https://api.test/base")
}

// newObject returns the ConfigMap in a version.
func newObject(name, version string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}, Data: data,
	}
}

// jsonHeader returns the header of an answer.
func jsonHeader() http.Header { return http.Header{"Content-Type": {"application/json"}} }

func (f *fakeAPI) event(kind string, o any) string {
	text, err := json.Marshal(map[string]any{"type": kind, "object": o})
	if err != nil {
		panic(err)
	}
	return string(text) + "\n"
}

// put creates or changes the object.
func (f *fakeAPI) put(data map[string]string) { f.set(func() { f.putLocked(data) }) }

func (f *fakeAPI) putLocked(data map[string]string) {
	f.version++
	kind := "MODIFIED"
	if f.object == nil {
		kind = "ADDED"
	}
	f.object = newObject("node-cache", strconv.Itoa(f.version), data)
	f.notifyLocked(f.event(kind, f.object))
}

func (f *fakeAPI) putText(text string) { f.put(map[string]string{Key: text}) }

// remove deletes the object.
func (f *fakeAPI) remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	gone := *f.object
	gone.ResourceVersion = strconv.Itoa(f.version)
	f.object = nil
	f.notifyLocked(f.event("DELETED", gone))
}

// bookmark sends a bookmark of a version.
func (f *fakeAPI) bookmark() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	f.notifyLocked(f.event("BOOKMARK", newObject("", strconv.Itoa(f.version), nil)))
}

func (f *fakeAPI) notifyLocked(text string) {
	f.history = append(f.history, change{f.version, text})
	for w := range f.watches {
		_, _ = io.WriteString(w, text)
	}
}

// forgetLocked drops the history.
func (f *fakeAPI) forgetLocked() {
	f.history, f.oldest = nil, f.version
}

// cut ends every watch with an error, or normally for nil.
func (f *fakeAPI) cut(err error) { f.set(func() { f.cutLocked(err) }) }

func (f *fakeAPI) cutLocked(err error) {
	for w := range f.watches {
		_ = w.CloseWithError(err)
		delete(f.watches, w)
	}
}

// set changes the fake under its lock.
func (f *fakeAPI) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeAPI) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *fakeAPI) written() []map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

// RoundTrip implements [http.RoundTripper].
func (f *fakeAPI) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	away, hangs, trap := f.away, f.hangs, f.trap
	f.mu.Unlock()
	switch {
	case trap != nil && trap(req):
		panic("a trap in the transport")
	case hangs:
		<-req.Context().Done()
		return nil, req.Context().Err()
	case away:
		return nil, fmt.Errorf("dial tcp 192.0.2.1:6443: connect: connection refused")
	case strings.Contains(req.URL.Path, "/events"):
		return f.takeEvent(req)
	}
	return f.serve(req)
}

// serve answers a list or begins a watch.
func (f *fakeAPI) serve(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := req.URL.Query()
	watching := q.Get("watch") == "true"
	name := "list"
	if watching {
		name = "watch " + q.Get("resourceVersion")
	}
	f.calls = append(f.calls, name)
	f.open++
	f.most = max(f.most, f.open)
	switch {
	case req.URL.Path != "/base/api/v1/namespaces/kube-system/configmaps" || q.Get("fieldSelector") != "metadata.name=node-cache":
		return f.answerLocked(http.StatusNotFound, "no such path: "+req.URL.String()), nil
	case f.deny != 0:
		return f.answerLocked(f.deny, f.denyWith), nil
	case !watching:
		all := corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(f.version)}}
		if f.object != nil {
			all.Items = append(all.Items, *f.object)
		}
		text, err := json.Marshal(all)
		return f.bodyLocked(http.StatusOK, string(text)), err
	}
	return f.watchLocked(req, q)
}

func (f *fakeAPI) watchLocked(req *http.Request, q url.Values) (*http.Response, error) {
	from, err1 := strconv.Atoi(q.Get("resourceVersion"))
	seconds, err2 := strconv.Atoi(q.Get("timeoutSeconds"))
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if from < f.oldest {
		return f.bodyLocked(http.StatusOK, f.event("ERROR", apierrors.NewResourceExpired("too old").Status())), nil
	}
	r, w := io.Pipe()
	var missed strings.Builder
	for _, c := range f.history {
		if c.version > from {
			missed.WriteString(c.text)
		}
	}
	f.watches[w] = true
	end := time.AfterFunc(time.Duration(seconds)*time.Second, func() { _ = w.Close() })
	ctx := req.Context()
	ended := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
			_ = w.CloseWithError(ctx.Err())
		case <-ended:
		}
	}()
	body := &closing{Reader: io.MultiReader(strings.NewReader(missed.String()), r), close: sync.OnceFunc(func() {
		end.Stop()
		close(ended)
		_ = r.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watches, w)
		f.open--
	})}
	return &http.Response{StatusCode: http.StatusOK, Header: jsonHeader(), Body: body}, nil
}

// answerLocked writes an error response.
func (f *fakeAPI) answerLocked(code int, message string) *http.Response {
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Status","status":"Failure","code":%d,"message":%q}`, code, message)
	return f.bodyLocked(code, text)
}

func (f *fakeAPI) bodyLocked(code int, text string) *http.Response {
	return &http.Response{StatusCode: code, Header: jsonHeader(), Body: &closing{Reader: strings.NewReader(text), close: sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.open--
	})}}
}

// takeEvent stores or patches an event.
func (f *fakeAPI) takeEvent(req *http.Request) (*http.Response, error) {
	var body map[string]any
	if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, req.Method)
	f.open++
	if f.noEvents != 0 {
		return f.answerLocked(f.noEvents, "no events"), nil
	}
	if req.Method == http.MethodPost {
		f.events = append(f.events, body)
		return f.bodyLocked(http.StatusCreated, "{}"), nil
	}
	for _, e := range f.events {
		if name, _ := e["metadata"].(map[string]any)["name"].(string); strings.HasSuffix(req.URL.Path, "/events/"+name) {
			maps.Copy(e, body)
			return f.bodyLocked(http.StatusOK, "{}"), nil
		}
	}
	return f.answerLocked(http.StatusNotFound, "no such event"), nil
}

// closing is a body that reports its close.
type closing struct {
	io.Reader
	close func()
}

// Close implements [io.Closer].
func (c *closing) Close() error {
	c.close()
	return nil
}
