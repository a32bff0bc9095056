// SPDX-License-Identifier: Apache-2.0

package watchtest

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// An Object is an object of the API.
type Object interface {
	runtime.Object
	metav1.Object
}

// A Server holds objects, and lists and watches them as kube-apiserver does: with resource versions, selectors, bookmarks, first
// lists in a watch, and a history that may be lost. It is an [http.Handler] and speaks JSON and protobuf.
type Server struct {
	codec codec
	now   func() time.Time

	mu       sync.Mutex        // guards the following fields
	version  uint64            // newest version of the database
	progress map[string]uint64 // the version that the cache of a resource has reached
	history  []change
	oldest   uint64        // watches that resume before this version get 410 Gone
	changed  chan struct{} // closed at the next change
	watches  map[*stream]struct{}
	requests []Request
	faults   faults
	dials    *dialer
}

// A change is one step of the history: what an object was and what it became.
type change struct {
	version  uint64
	resource string
	old, new Object // old is nil for a creation, new for a deletion
}

// A Request is a request that the server received.
type Request struct {
	At       time.Time
	Verb     string // get, list, watch, or watchlist for a watch with a first list
	Resource string
	Version  string // requested resource version
	Length   string // requested timeout in seconds
	Selector string // label selector
	Fields   string // field selector
	Space    string // namespace
	Status   int    // of the reply; 0: none yet
}

// New makes an empty server. It uses now only for the times of the requests.
func New(now func() time.Time) *Server {
	return &Server{
		codec: newCodec(), now: now, version: 100, progress: make(map[string]uint64),
		changed: make(chan struct{}), watches: make(map[*stream]struct{}),
		faults: faults{refused: make(map[string]int)},
	}
}

// Put creates the object, or replaces it. It returns the resource version.
func (s *Server) Put(o Object) uint64 { return s.change(o, true) }

// Delete deletes the object. It returns the resource version.
func (s *Server) Delete(o Object) uint64 { return s.change(o, false) }

func (s *Server) change(o Object, there bool) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	c := change{version: s.version, resource: resourceOf(o)}
	next, _ := o.DeepCopyObject().(Object)
	next.SetResourceVersion(strconv.FormatUint(s.version, 10))
	c.old = s.stateLocked(c.resource, s.version)[key(o)]
	if there {
		c.new = next
	}
	s.history = append(s.history, c)
	s.progress[c.resource] = s.version
	s.notifyLocked()
	return s.version
}

// notifyLocked wakes every watch.
func (s *Server) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// stateLocked returns the objects as of a version.
func (s *Server) stateLocked(resource string, version uint64) map[string]Object {
	state := make(map[string]Object)
	for _, c := range s.history {
		switch {
		case c.version > version || c.resource != resource:
		case c.new == nil:
			delete(state, key(c.old))
		default:
			state[key(c.new)] = c.new
		}
	}
	return state
}

// Requests returns the received requests for the resource, or all requests if it is empty.
func (s *Server) Requests(resource string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.requests), func(r Request) bool { return resource != "" && r.Resource != resource })
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sel, err := newSelection(r)
	if err != nil {
		s.codec.fail(w, r, http.StatusNotFound, metav1.StatusReasonNotFound, err.Error())
		return
	}
	hung := s.note(sel)
	if hung != nil {
		select {
		case <-hung:
		case <-r.Context().Done():
			return
		}
	}
	active, code := s.faultsFor(sel.resource)
	if answer := active.answers[sel.resource]; answer != nil {
		answer(w, r)
		return
	}
	switch {
	case code == http.StatusForbidden:
		s.codec.fail(w, r, code, metav1.StatusReasonForbidden, fmt.Sprintf("%s is forbidden: User \"node-cache\" cannot %s it", sel.resource, sel.verb))
	case code == http.StatusUnauthorized:
		s.codec.fail(w, r, code, metav1.StatusReasonUnauthorized, "Unauthorized")
	case code == http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "1")
		s.codec.fail(w, r, code, metav1.StatusReasonTooManyRequests, "too many requests")
	case code != 0:
		s.codec.fail(w, r, code, metav1.StatusReasonServiceUnavailable, "not now")
	case sel.verb == "list":
		s.list(w, r, sel)
	case sel.verb == "get":
		s.get(w, r, sel)
	default:
		s.watch(w, r, sel, &active)
	}
}

// note records the request. While the server hangs, it returns a channel that Resume closes, else nil.
func (s *Server) note(sel *selection) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, Request{
		At: s.now(), Verb: sel.verb, Resource: sel.resource, Version: sel.version, Length: sel.query.Get("timeoutSeconds"),
		Selector: sel.query.Get("labelSelector"), Fields: sel.query.Get("fieldSelector"), Space: sel.namespace,
	})
	return s.faults.hung
}

// list answers a list request with all objects, whatever the limit.
func (s *Server) list(w http.ResponseWriter, r *http.Request, sel *selection) {
	s.mu.Lock()
	at, ok := s.servedLocked(sel)
	state := s.stateLocked(sel.resource, at)
	s.mu.Unlock()
	if !ok {
		s.codec.write(w, r, http.StatusGatewayTimeout, notYet())
		return
	}
	var objects []Object
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if sel.matches(state[name]) {
			objects = append(objects, state[name])
		}
	}
	s.codec.write(w, r, http.StatusOK, listOf(sel.resource, objects, at))
}

// get answers a get request, with one object.
func (s *Server) get(w http.ResponseWriter, r *http.Request, sel *selection) {
	s.mu.Lock()
	o := s.stateLocked(sel.resource, s.version)[sel.namespace+"/"+sel.name]
	s.mu.Unlock()
	if o == nil {
		s.codec.fail(w, r, http.StatusNotFound, metav1.StatusReasonNotFound, sel.name+" not found")
		return
	}
	s.codec.write(w, r, http.StatusOK, o)
}

// servedLocked returns the version that a list is served at, and false if that is older than the requested one. A request for the
// newest state first brings the cache up to date with the database; others are answered from the cache as it is.
func (s *Server) servedLocked(sel *selection) (uint64, bool) {
	if sel.version == "" {
		if s.faults.busy {
			s.version++
		}
		if s.faults.lag == 0 {
			s.progress[sel.resource] = s.version
		}
		return s.version, true
	}
	at := s.reachedLocked(sel.resource)
	n, err := strconv.ParseUint(sel.version, 10, 64)
	return at, err == nil && n <= at
}

// reachedLocked returns the version that the cache of the resource has reached.
func (s *Server) reachedLocked(resource string) uint64 {
	if s.faults.lag > 0 {
		return min(s.faults.lag, s.progress[resource])
	}
	return s.progress[resource]
}

// kinds has an object of each kind, by the kind's plural name.
func kinds() map[string]Object {
	return map[string]Object{
		"services": &corev1.Service{}, "namespaces": &corev1.Namespace{}, "pods": &corev1.Pod{}, "nodes": &corev1.Node{},
		"endpointslices": &discoveryv1.EndpointSlice{},
	}
}

// resourceOf returns the plural name of the object's kind.
func resourceOf(o Object) string {
	for name, kind := range kinds() {
		if reflect.TypeOf(kind) == reflect.TypeOf(o) {
			return name
		}
	}
	panic(fmt.Sprintf("no resource for %T", o))
}

func key(o Object) string { return o.GetNamespace() + "/" + o.GetName() }

// matches reports whether the request selects the object.
func (sel *selection) matches(o Object) bool {
	if o == nil || sel.namespace != "" && sel.namespace != o.GetNamespace() {
		return false
	}
	set := fields.Set{"metadata.name": o.GetName()}
	if pod, ok := o.(*corev1.Pod); ok {
		set["status.phase"], set["spec.nodeName"] = string(pod.Status.Phase), pod.Spec.NodeName
	}
	return sel.labels.Matches(labels.Set(o.GetLabels())) && sel.fields.Matches(set)
}
