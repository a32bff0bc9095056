// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

const (
	defaultTop = 20
	maxTop     = 1000 // entries of one page
)

// A Cache holds the functions of the cache pages. All are required. Their results are rendered like the
// status. An error is a bad request and its text is the reply.
type Cache struct {
	Get   func(name, rrtype string) (any, error)    // entries of a name; of all types if rrtype is empty
	Top   func(n int, by string) (any, error)       // the n entries with the most "hits" or the largest "size"
	Flush func(name string, zone bool) (any, error) // removes the entries of a name, with zone set also those of all names below it
}

// cachePage serves the result of f for a request's parameters; only those in names are allowed. Pages are rendered one at a
// time, because each may walk the whole cache.
func (s *Server) cachePage(f func(url.Values) (any, error), names ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		given, err := parameters(r, append(names, "format", tokenParameter))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if _, err := wantsText(r); err != nil { // refuse a wrong format before f runs: f may remove entries
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.inTurn(s.cacheSlot, func(w http.ResponseWriter, r *http.Request) {
			view, err := f(given)
			if err != nil {
				http.Error(w, printable(err.Error()), http.StatusBadRequest)
				return
			}
			s.render(w, r, view)
		})(w, r)
	}
}

// parameters returns the parameters of a request. Each must be known and given once.
func parameters(r *http.Request, known []string) (url.Values, error) {
	given, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, errors.New("parameters: " + printable(err.Error()))
	}
	for name, values := range given {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("parameter %q: unknown", printable(name))
		}
		if len(values) > 1 {
			return nil, fmt.Errorf("parameter %q: given more than once", name)
		}
	}
	return given, nil
}

// cacheGet returns the entries of a name.
func (s *Server) cacheGet(given url.Values) (any, error) {
	name := given.Get("name")
	if name == "" {
		return nil, errors.New("name: missing")
	}
	return s.cfg.Cache.Get(name, given.Get("type"))
}

// cacheTop returns the top entries.
func (s *Server) cacheTop(given url.Values) (any, error) {
	n, by := defaultTop, "hits"
	if given.Has("n") {
		var err error
		if n, err = strconv.Atoi(given.Get("n")); err != nil || n < 1 || n > maxTop {
			return nil, fmt.Errorf("n %q: not a number from 1 to %d", given.Get("n"), maxTop)
		}
	}
	if given.Has("by") {
		if by = given.Get("by"); by != "hits" && by != "size" {
			return nil, fmt.Errorf("by %q: neither hits nor size", by)
		}
	}
	return s.cfg.Cache.Top(n, by)
}

// cacheFlush removes entries.
func (s *Server) cacheFlush(given url.Values) (any, error) {
	name, zone, all := given.Get("name"), given.Get("zone"), given.Get("all")
	switch {
	case given.Has("all") && all != "1":
		return nil, fmt.Errorf("all %q: must be 1", all)
	case name != "" && zone+all == "":
		return s.cfg.Cache.Flush(name, false)
	case zone != "" && name+all == "":
		return s.cfg.Cache.Flush(zone, true)
	case all != "" && name+zone == "":
		return s.cfg.Cache.Flush(".", true)
	}
	return nil, errors.New("give exactly one of name, zone, and all=1")
}
