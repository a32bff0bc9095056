// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"io"
	"net/http"
	"strings"
)

// A Check is something that is looked at again and again.
type Check struct {
	Label string // of a-z, 0-9 and -
	Err   error  // nil: it is well; else its text is told
}

// outcome serves that of f. It takes no place of a page's: it is what a probe asks for.
func outcome(f func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		text, good := "ok\n", true
		if err := f(); err != nil {
			text, good = printable(err.Error())+"\n", false
		}
		tell(w, text, good)
	}
}

// check serves the check that the request names.
func (s *Server) check(w http.ResponseWriter, r *http.Request) {
	for _, c := range s.cfg.Checks() {
		if c.Label == r.PathValue("label") {
			outcome(func() error { return c.Err })(w, r)
			return
		}
	}
	http.Error(w, "no probe has this label; see /healthcheck/", http.StatusNotFound)
}

// checks lists every check on a line of its own, and is good if all are.
func (s *Server) checks(w http.ResponseWriter, _ *http.Request) {
	var text strings.Builder
	good := true
	for _, c := range s.cfg.Checks() {
		how := "ok"
		if c.Err != nil {
			good, how = false, strings.ReplaceAll(printable(c.Err.Error()), "\n", " ")
		}
		text.WriteString(c.Label + ": " + how + "\n")
	}
	tell(w, text.String(), good)
}

// tell serves a text, with 503 if it is no good news.
func tell(w http.ResponseWriter, text string, good bool) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !good {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = io.WriteString(w, text)
}
