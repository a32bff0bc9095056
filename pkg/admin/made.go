// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"cmp"
	"net/http"
)

// made serves a page that takes time and memory. It is made whole before any of it is
// sent, so that a client that is slow to take it holds up nothing but itself.
func (s *Server) made(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := visitOf(r)
		if !s.making.wait(r) || !s.visits.begin(v) {
			busy(w)
			return
		}
		defer s.visits.end(v)
		whole := &wholePage{header: w.Header()}
		began := s.making.now()
		page(whole, r)
		s.making.took(s.making.now().Sub(began))
		s.visits.write(v)
		w.WriteHeader(cmp.Or(whole.code, http.StatusOK))
		_, _ = w.Write(whole.body.Bytes())
	}
}

// profile serves a profile to clients on this machine, few at a time.
func (s *Server) profile(page http.HandlerFunc) http.HandlerFunc {
	return here(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.profiles <- struct{}{}:
		default:
			busy(w)
			return
		}
		defer func() { <-s.profiles }()
		defer s.visits.hold(visitOf(r))()
		page(w, r)
	})
}

// busy serves that there are too many requests of a kind at once.
func busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "too many concurrent requests", http.StatusServiceUnavailable)
}

// A wholePage takes a page in place of the client.
type wholePage struct {
	header http.Header // the reply's own
	code   int         // 0: not said yet
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (p *wholePage) Header() http.Header { return p.header }

// WriteHeader implements [http.ResponseWriter].
func (p *wholePage) WriteHeader(code int) { p.code = cmp.Or(p.code, code) }

// Write implements [http.ResponseWriter].
func (p *wholePage) Write(b []byte) (int, error) { return p.body.Write(b) }
