// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
)

// status serves the status.
func (s *Server) status(w http.ResponseWriter, r *http.Request) { s.render(w, r, s.cfg.Status()) }

// render serves what a page shows in the form that was asked for.
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

// wantsText tells text from JSON. The query decides if it says something, then
// the first type of the Accept header that is one of the two. Weights are not
// looked at.
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

// encode is v as indented JSON with a newline at its end.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // the page is no HTML, and is read by humans too
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encoding the page: %w", err)
	}
	return b.Bytes(), nil
}
