// SPDX-License-Identifier: Apache-2.0

package watchtest

import (
	"cmp"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	bookmarkPeriod = time.Minute     // as in kube-apiserver
	beforeTheEnd   = 2 * time.Second // time from the last bookmark to the end of a watch, as in kube-apiserver
)

// A stream is one watch that is open.
type stream struct {
	sel    *selection
	events *events
	raw    io.Writer
	flush  func()
	cursor uint64 // version up to which all was sent

	markDue bool // a bookmark is to be sent

	// The server's mutex guards the following fields.
	inject []injection // what to send next
	frozen bool        // nothing is sent any more
}

// An injection is an event, or bytes, to be sent. It may end the watch.
type injection struct {
	event   string
	object  runtime.Object
	raw     []byte // sent in place of an event; nil: none
	thenEnd bool
}

// watch answers a watch.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, sel *selection, active *faults) {
	if sel.verb == "watchlist" && active.noLists {
		s.codec.fail(w, r, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
		return
	}
	flush := func() {}
	if f, ok := w.(http.Flusher); ok {
		flush = f.Flush
	}
	st := &stream{sel: sel, events: s.codec.events(w, r), raw: w, flush: flush}
	s.open(st)
	defer s.close(st)
	w.WriteHeader(http.StatusOK)
	flush()
	if s.begin(st) {
		s.follow(st, r, active.closeAfter)
	}
}

func (s *Server) open(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[st] = struct{}{}
}

func (s *Server) close(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, st)
}

// begin sends the first list, if the watch has one. It reports false if the watch ends with it.
func (s *Server) begin(st *stream) bool {
	s.mu.Lock()
	asked, _ := strconv.ParseUint(st.sel.version, 10, 64)
	version, hasCome := uint64(0), true
	if st.sel.verb == "watchlist" {
		version, hasCome = s.servedLocked(st.sel)
	}
	state := s.stateLocked(st.sel.resource, version)
	oldest, cut, pause := s.oldest, s.faults.cutLists, s.faults.pauseLists
	s.mu.Unlock()
	if st.sel.verb == "watch" {
		st.cursor = asked
		if asked < oldest {
			_ = st.send("ERROR", failure(http.StatusGone, metav1.StatusReasonExpired, "too old resource version"))
			return false
		}
		return true
	}
	if !hasCome {
		_ = st.send("ERROR", notYet())
		return false
	}
	for i, name := range slices.Sorted(maps.Keys(state)) {
		if i == cut-1 {
			return false
		}
		if st.sel.matches(state[name]) && st.send("ADDED", state[name]) != nil {
			return false
		}
	}
	st.cursor = version
	if pause {
		return true // the end of the list never comes
	}
	return st.send("BOOKMARK", bookmark(st.sel.resource, version, true)) == nil
}

// follow sends changes and bookmarks until the watch ends: at the requested timeout, and no later than latest if that is not 0.
func (s *Server) follow(st *stream, r *http.Request, latest time.Duration) {
	length := 30 * time.Minute
	if seconds, err := strconv.Atoi(st.sel.query.Get("timeoutSeconds")); err == nil {
		length = time.Duration(seconds) * time.Second
	}
	end := time.NewTimer(min(length, cmp.Or(latest, length)))
	defer end.Stop()
	mark := time.NewTimer(min(bookmarkPeriod, max(length-beforeTheEnd, 0)))
	defer mark.Stop()
	for {
		news, changed := s.news(st)
		for _, n := range news {
			if !st.deliver(n) {
				return
			}
		}
		select {
		case <-changed:
		case <-mark.C:
			mark.Reset(bookmarkPeriod)
			st.markDue = true
		case <-end.C:
			if !s.isFrozen(st) {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// news returns what is to be sent now, and a channel that is closed at the next change.
func (s *Server) news(st *stream) (news []injection, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.frozen || s.faults.hung != nil {
		return nil, s.changed
	}
	news, st.inject = st.inject, nil
	for _, c := range s.history {
		if c.version <= st.cursor || c.resource != st.sel.resource || s.faults.lag > 0 && c.version > s.faults.lag {
			continue
		}
		was, is := st.sel.matches(c.old), st.sel.matches(c.new)
		switch {
		case is && was:
			news = append(news, injection{event: "MODIFIED", object: c.new})
		case is:
			news = append(news, injection{event: "ADDED", object: c.new})
		case was:
			last, _ := c.old.DeepCopyObject().(Object)
			last.SetResourceVersion(strconv.FormatUint(c.version, 10))
			news = append(news, injection{event: "DELETED", object: last})
		}
		st.cursor = c.version
	}
	// The server sends no bookmark of a version that the watch has passed, also by a change that its selector hides.
	// kube-apiserver sends some of these: it leaves out only those that are not newer than the start of the watch.
	if version := s.reachedLocked(st.sel.resource); st.markDue && !s.faults.noBookmarks && version > st.cursor {
		news = append(news, injection{event: "BOOKMARK", object: bookmark(st.sel.resource, version, false)})
		st.cursor = version
	}
	st.markDue = false
	return news, s.changed
}

func (s *Server) isFrozen(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return st.frozen || s.faults.hung != nil
}

// deliver sends an injection. It reports false if the watch ends with it.
func (st *stream) deliver(n injection) bool {
	var err error
	switch {
	case n.raw != nil:
		_, err = st.raw.Write(n.raw)
		st.flush()
	case n.event != "":
		err = st.send(n.event, n.object)
	}
	return err == nil && !n.thenEnd
}

func (st *stream) send(kind string, o runtime.Object) error {
	err := st.events.write(kind, o)
	st.flush()
	return err
}
