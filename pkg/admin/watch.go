// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net/http"
	"net/url"
	"time"
)

// A Watch starts a stream of the queries that the parameters select. end ends it. An error is a bad request and its text is
// the reply.
type Watch func(url.Values) (lines <-chan []byte, end func(), err error)

// watchTimeout bounds the time that a client may take to read what was written.
const watchTimeout = 10 * time.Second

// watchPage serves lines as they come, until the client closes the connection or the agent stops.
func watchPage(start Watch) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		given, err := parameters(r, []string{"namespace", "pod", "name", "rcode", "source", tokenParameter})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		lines, end, err := start(given)
		if err != nil {
			http.Error(w, printable(err.Error()), http.StatusBadRequest)
			return
		}
		defer end()
		stream(w, r, lines)
	}
}

// stream writes lines as they come.
func stream(w http.ResponseWriter, r *http.Request, lines <-chan []byte) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // else the request's context ends at readTimeout
	w.Header().Set("Content-Type", "application/x-ndjson")
	for {
		_ = control.SetWriteDeadline(time.Now().Add(watchTimeout)) //nolint:forbidigo // of a socket
		if len(lines) == 0 && control.Flush() != nil {
			return
		}
		select {
		case line := <-lines:
			if _, err := w.Write(line); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
