// SPDX-License-Identifier: Apache-2.0

package watchtest

import (
	"cmp"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// faults is the active faults of a server.
type faults struct {
	refused     map[string]int // status for each resource; "": for all
	hung        chan struct{}  // closed when it is over; nil: requests are answered
	busy        bool           // other objects change all the time
	noLists     bool           // no watches with a first list
	noBookmarks bool
	cutLists    int // a first list ends before so many objects; 0: it does not
	pauseLists  bool
	closeAfter  time.Duration    // watches end after that; 0: when they should
	lag         uint64           // version that the cache has reached; 0: the newest
	answered    string           // resource
	answer      http.HandlerFunc // in place of the server; nil: none
}

// Refuse has every request for the resource, or for an empty one every request, answered with the status. 0 ends it.
func (s *Server) Refuse(resource string, status int) {
	s.set(func() { s.faults.refused[resource] = status })
}

// Hang answers no request from now on, and is silent in the watches that are open, which stay so. Nothing is closed.
func (s *Server) Hang() { s.set(func() { s.faults.hung = make(chan struct{}) }) }

// Resume ends Hang.
func (s *Server) Resume() {
	s.set(func() {
		close(s.faults.hung)
		s.faults.hung = nil
	})
}

// Freeze makes the watches that are open silent for good. New watches work.
func (s *Server) Freeze() {
	s.set(func() {
		for w := range s.watches {
			w.frozen = true
		}
	})
}

// Busy has objects change that no watch selects.
func (s *Server) Busy() { s.set(func() { s.faults.busy = true }) }

// WithoutLists makes the server reject watches with a first list, as old servers.
func (s *Server) WithoutLists() { s.set(func() { s.faults.noLists = true }) }

// WithoutBookmarks has the server send no bookmarks but those at the end of a first list.
func (s *Server) WithoutBookmarks() { s.set(func() { s.faults.noBookmarks = true }) }

// CutLists ends each first list before its n-th object. 0 ends that.
func (s *Server) CutLists(n int) { s.set(func() { s.faults.cutLists = n }) }

// PauseLists makes first lists endless.
func (s *Server) PauseLists(pause bool) { s.set(func() { s.faults.pauseLists = pause }) }

// CloseAfter ends each watch that begins from now on after d. 0 ends that.
func (s *Server) CloseAfter(d time.Duration) { s.set(func() { s.faults.closeAfter = d }) }

// Lag has the server answer from a cache that has reached only this version. 0 ends that.
func (s *Server) Lag(version uint64) { s.set(func() { s.faults.lag = version }) }

// Answer has answer reply to each request for the resource in the place of the server. nil ends that.
func (s *Server) Answer(resource string, answer http.HandlerFunc) {
	s.set(func() { s.faults.answered, s.faults.answer = resource, answer })
}

// Forget loses the history: a watch that resumes before now gets 410 Gone, and so does every open watch.
func (s *Server) Forget() {
	gone := failure(http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
	s.set(func() {
		s.version++ // something else changed in the meantime
		s.oldest = s.version
		for resource := range s.progress {
			s.progress[resource] = s.version
		}
		s.injectLocked(injection{event: "ERROR", object: gone, thenEnd: true})
	})
}

// Rewind sets the server back to a version, as from an old copy of its database, and ends the watches.
func (s *Server) Rewind(version uint64) {
	s.set(func() {
		for i, c := range s.history {
			if c.version > version {
				s.history = s.history[:i]
				break
			}
		}
		s.version = version
		for resource := range s.progress {
			s.progress[resource] = version
		}
		s.injectLocked(injection{thenEnd: true})
	})
}

// Garble sends bytes that are not an event to all open watches.
func (s *Server) Garble() {
	s.set(func() { s.injectLocked(injection{raw: []byte("\x00\x00\x00\x05{\"ty\n<html>no event</html>\n")}) })
}

// Send sends an event about the object to all open watches of its kind, even if the server does not hold the object.
func (s *Server) Send(event string, o Object) {
	s.set(func() {
		for w := range s.watches {
			if w.sel.resource == resourceOf(o) {
				w.inject = append(w.inject, injection{event: event, object: o})
			}
		}
	})
}

// CloseWatches ends the watches that are open.
func (s *Server) CloseWatches() { s.set(func() { s.injectLocked(injection{thenEnd: true}) }) }

// set changes what is wrong, and wakes the watches.
func (s *Server) set(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	s.notifyLocked()
}

func (s *Server) injectLocked(n injection) {
	for w := range s.watches {
		w.inject = append(w.inject, n)
	}
}

// faultsFor returns the active faults, and the status that requests for the resource are refused with; 0: none.
func (s *Server) faultsFor(resource string) (active faults, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults, cmp.Or(s.faults.refused[""], s.faults.refused[resource])
}
