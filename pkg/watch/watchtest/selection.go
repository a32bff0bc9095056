// SPDX-License-Identifier: Apache-2.0

package watchtest

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// A selection is what a request selects.
type selection struct {
	verb      string
	resource  string
	namespace string
	name      string // name of the object to get; empty: no get
	version   string // requested resource version
	query     url.Values
	labels    labels.Selector
	fields    fields.Selector
}

// newSelection reads a request.
func newSelection(r *http.Request) (*selection, error) {
	sel := &selection{query: r.URL.Query()}
	path, ok := strings.CutPrefix(r.URL.Path, "/api/v1/")
	for _, group := range []string{"discovery.k8s.io", "apps"} {
		if !ok {
			path, ok = strings.CutPrefix(r.URL.Path, "/apis/"+group+"/v1/")
		}
	}
	if !ok {
		return nil, fmt.Errorf("no such path: %s", r.URL.Path)
	}
	parts := strings.Split(path, "/")
	if parts[0] == "namespaces" && len(parts) >= 3 {
		sel.namespace, parts = parts[1], parts[2:]
	}
	sel.resource = parts[0]
	sel.version = sel.query.Get("resourceVersion")
	switch {
	case len(parts) > 1:
		sel.verb, sel.name = "get", parts[1]
	case sel.query.Get("sendInitialEvents") == "true":
		sel.verb = "watchlist"
	case sel.query.Get("watch") == "true" || sel.query.Get("watch") == "1":
		sel.verb = "watch"
	default:
		sel.verb = "list"
	}
	var err error
	if sel.labels, err = labels.Parse(sel.query.Get("labelSelector")); err != nil {
		return nil, err
	}
	sel.fields, err = fields.ParseSelector(sel.query.Get("fieldSelector"))
	return sel, err
}
