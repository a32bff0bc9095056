// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/watch"
)

// FuzzReadEvents reads arbitrary events of a watch. Only an event about the one object with a text under the key gives a
// configuration, and the version follows the events that have one.
func FuzzReadEvents(f *testing.F) {
	api := newFakeAPI()
	for _, text := range []string{
		api.event("ADDED", newObject("node-cache", "12", map[string]string{Key: size(4)})),
		api.event("DELETED", newObject("node-cache", "13", map[string]string{Key: size(4)})),
		api.event("BOOKMARK", newObject("", "14", nil)),
		api.event("ERROR", apierrors.NewResourceExpired("too old").Status()),
		api.event("MODIFIED", newObject("other", "15", map[string]string{Key: size(4)})),
		`{"type":"ADDED","object":null}`, `{"type":"ADDED"}`, `[]`, `{"type":1}`, "<html>", `{"type":"ADDED","object":{"metadata":{"name":"node-cache","resourceVersion":"1"},"data":{"node-cache.yaml":3}}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := newSource(Config{ConfigMap: watched(), Apply: func(config.Config, error) (InUse, error) { return InUse{}, nil }, Now: time.Now}, api.dial)
		assert.NoError(t, err)
		m := s.main.(*configMap)
		m.version, m.api.client = "11", nil
		m.api.dial = bodies(strings.NewReader(text))
		err = m.watch(t.Context())
		if m.version == "" {
			t.Error("the version was lost")
		}
		if s.version > 0 && s.mainContent.err == nil && (!m.exists || strings.TrimSpace(m.text) == "" || !strings.Contains(text, "{")) {
			t.Errorf("a configuration of %q", text)
		}
		if m.version != "11" && !strings.Contains(text, "{") {
			t.Errorf("version %q of %q, %v", m.version, text, err)
		}
	})
}

// TestReadEventsBounded has an endless event.
func TestReadEventsBounded(t *testing.T) {
	t.Parallel()
	w := newHarness(t, Config{})
	m := w.main.(*configMap)
	endless := io.MultiReader(strings.NewReader(`{"type":"ADDED","object":"`), &repeated{})
	m.api.client, m.api.dial = nil, bodies(endless)
	if err := m.watch(t.Context()); reasonOf(err) != reasonUnreadable {
		t.Errorf("got %v, want that it is unreadable", err)
	}
}

// bodies returns a dial function whose requests all have this answer.
func bodies(body io.Reader) func(kubeconfig, userAgent string) (*watch.Client, error) {
	return func(string, string) (*watch.Client, error) {
		return watch.ClientOver(&http.Client{Transport: answer{body}}, "https://api.test")
	}
}

// An answer is the body of every response.
type answer struct{ io.Reader }

// RoundTrip implements [http.RoundTripper].
func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: jsonHeader(), Body: io.NopCloser(a)}, nil
}

// repeated is an endless text.
type repeated struct{}

// Read implements [io.Reader].
func (*repeated) Read(p []byte) (int, error) {
	return copy(p, bytes.Repeat([]byte("a"), len(p))), nil
}
