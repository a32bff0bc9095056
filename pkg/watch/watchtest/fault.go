// SPDX-License-Identifier: Apache-2.0

package watchtest

import (
	"cmp"
	"maps"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// faults are the active faults of a server.
type faults struct {
	refused     map[string]int // HTTP status for the requests of a resource; key "": of all resources
	hung        chan struct{}  // closed by Resume; nil: requests are answered
	busy        bool           // each list of the newest state advances the version, as if other objects had changed
	noLists     bool           // watches with a first list are rejected
	noBookmarks bool
	cutLists    int                         // a first list ends before its n-th object; 0: it is complete
	pauseLists  bool                        // a first list never ends
	closeAfter  time.Duration               // longest time of a watch; 0: no limit
	lag         uint64                      // highest resource version that the watch cache serves; 0: no limit
	answers     map[string]http.HandlerFunc // by resource: replies in place of the server
}

// Refuse makes the server answer requests for the resource, or all requests if it is empty, with the HTTP status. 0 ends that.
func (s *Server) Refuse(resource string, status int) {
	s.set(func() { s.faults.refused[resource] = status })
}

// Hang makes the server answer no request, and send nothing in open watches, until Resume. It closes no connection.
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

// Busy makes each list of the newest state advance the version, as if objects had changed that no watch selects.
func (s *Server) Busy() { s.set(func() { s.faults.busy = true }) }

// WithoutLists makes the server reject watches with a first list, as old servers.
func (s *Server) WithoutLists() { s.set(func() { s.faults.noLists = true }) }

// WithoutBookmarks makes the server send no bookmarks but those at the end of a first list.
func (s *Server) WithoutBookmarks() { s.set(func() { s.faults.noBookmarks = true }) }

// CutLists ends each first list before its n-th object. 0 ends that.
func (s *Server) CutLists(n int) { s.set(func() { s.faults.cutLists = n }) }

// PauseLists makes first lists endless; false ends that.
func (s *Server) PauseLists(pause bool) { s.set(func() { s.faults.pauseLists = pause }) }

// CloseAfter ends each watch that begins from now on after d. 0 ends that.
func (s *Server) CloseAfter(d time.Duration) { s.set(func() { s.faults.closeAfter = d }) }

// Lag makes the server's watch cache serve nothing newer than this version. 0 ends that.
func (s *Server) Lag(version uint64) { s.set(func() { s.faults.lag = version }) }

// Answer has answer reply to each request for the resource in the place of the server. nil ends that.
func (s *Server) Answer(resource string, answer http.HandlerFunc) {
	s.set(func() {
		answers := maps.Clone(s.faults.answers) // requests have the old one
		if answers == nil {
			answers = map[string]http.HandlerFunc{}
		}
		answers[resource] = answer
		s.faults.answers = answers
	})
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

// set changes the faults, and wakes the watches.
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
