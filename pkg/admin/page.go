// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
)

// buffered serves a page that takes time and memory. The page is rendered completely before any of it is
// sent, so a slow client delays only itself.
func (s *Server) buffered(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := s.connections.of(r)
		if !s.renderThrottle.wait(r) || !s.connections.begin(v) {
			busy(w)
			return
		}
		defer s.connections.end(v)
		whole := &pageBuffer{header: w.Header()}
		began := s.renderThrottle.now()
		page(whole, r)
		s.renderThrottle.took(r, s.renderThrottle.now().Sub(began))
		s.connections.set(v, writing)
		w.WriteHeader(cmp.Or(whole.code, http.StatusOK))
		_, _ = w.Write(whole.body.Bytes())
	}
}

// inTurn serves a page that is rendered while its request holds slot, a semaphore. Other requests wait.
func (s *Server) inTurn(slot chan struct{}, page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case slot <- struct{}{}:
		case <-r.Context().Done(): // the client is gone, or the agent stops
			busy(w)
			return
		}
		done := sync.OnceFunc(func() { <-slot })
		defer done()
		s.buffered(func(w http.ResponseWriter, r *http.Request) {
			page(w, r)
			done() // give the slot to the next request before the reply is written
		})(w, r)
	}
}

// profile serves a profile. It refuses a request while maxProfiles others are served.
func (s *Server) profile(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.profiles <- struct{}{}:
		default:
			busy(w)
			return
		}
		defer func() { <-s.profiles }()
		held := s.connections.of(r) // profiles have their own bound, maxProfiles, and do not count towards maxPages
		s.connections.set(held, rendering)
		defer s.connections.set(held, idle)
		page(w, r)
	}
}

// busy replies that there are too many requests of a kind.
func busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "too many concurrent requests", http.StatusServiceUnavailable)
}

// A pageBuffer collects a page.
type pageBuffer struct {
	header http.Header // header of the reply itself, not a copy
	code   int         // 0: not set
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (p *pageBuffer) Header() http.Header { return p.header }

// WriteHeader implements [http.ResponseWriter].
func (p *pageBuffer) WriteHeader(code int) { p.code = cmp.Or(p.code, code) }

// Write implements [http.ResponseWriter].
func (p *pageBuffer) Write(b []byte) (int, error) { return p.body.Write(b) }

// render serves a page in the requested format.
func (s *Server) render(w http.ResponseWriter, r *http.Request, view any) {
	text, err := wantsText(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	body, err := encode(view)
	kind := "application/json"
	if err == nil && text {
		body, err = renderText(body)
		kind = "text/plain; charset=utf-8"
	}
	if err != nil {
		s.cfg.Log.ErrorContext(r.Context(), "rendering page failed", "path", r.URL.Path, "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Vary", "Accept")
	_, _ = w.Write(body)
}

// wantsText reports whether a request asks for text rather than JSON. The query decides, else the first known
// type of the Accept header. Weights are ignored.
func wantsText(r *http.Request) (bool, error) {
	switch format := r.URL.Query().Get("format"); format {
	case "text":
		return true, nil
	case "json":
		return false, nil
	case "":
	default:
		return false, fmt.Errorf("format %q: neither text nor json", format)
	}
	for item := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		kind, _, err := mime.ParseMediaType(item)
		switch {
		case err != nil:
		case kind == "text/plain":
			return true, nil
		case kind == "application/json":
			return false, nil
		}
	}
	return false, nil
}

// encode returns v as indented JSON with a final newline.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // the page is no HTML, and people read it
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encoding the page: %w", err)
	}
	return b.Bytes(), nil
}

// outcome serves the result of f. Its replies do not count towards maxPages, because probes request them.
func outcome(f func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		text, good := "ok\n", true
		if err := f(); err != nil {
			text, good = printable(err.Error())+"\n", false
		}
		writeOutcome(w, text, good)
	}
}

// check serves the check that the request names.
func (s *Server) check(w http.ResponseWriter, r *http.Request) {
	for label, err := range s.cfg.Checks() {
		if label == r.PathValue("label") {
			outcome(func() error { return err })(w, r)
			return
		}
	}
	http.Error(w, "no probe has this label; see /healthcheck/", http.StatusNotFound)
}

// checks lists each check on its own line. The status is 200 if all checks succeed.
func (s *Server) checks(w http.ResponseWriter, _ *http.Request) {
	var text strings.Builder
	good := true
	for label, err := range s.cfg.Checks() {
		how := "ok"
		if err != nil {
			good, how = false, strings.ReplaceAll(printable(err.Error()), "\n", " ")
		}
		text.WriteString(label + ": " + how + "\n")
	}
	writeOutcome(w, text.String(), good)
}

// writeOutcome writes text as the reply, with status 200 if good is set, else 503.
func writeOutcome(w http.ResponseWriter, text string, good bool) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !good {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = io.WriteString(w, text)
}
