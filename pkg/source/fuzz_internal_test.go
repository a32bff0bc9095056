// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// FuzzReadEvents reads arbitrary events of a watch. Only an event about the one object with a text under the key gives a
// configuration, and the version follows the events that have one.
func FuzzReadEvents(f *testing.F) {
	api := newFakeAPI()
	for _, text := range []string{
		api.event("ADDED", item{Metadata: meta{"node-cache", "12"}, Data: map[string]string{Key: size(4)}}),
		api.event("DELETED", item{Metadata: meta{"node-cache", "13"}, Data: map[string]string{Key: size(4)}}),
		api.event("BOOKMARK", item{Metadata: meta{"", "14"}}),
		api.event("ERROR", statusError{Code: 410, Message: "too old"}),
		api.event("MODIFIED", item{Metadata: meta{"other", "15"}, Data: map[string]string{Key: size(4)}}),
		`{"type":"ADDED","object":null}`, `{"type":"ADDED"}`, `[]`, `{"type":1}`, "<html>", `{"type":"ADDED","object":{"metadata":{"name":"node-cache","resourceVersion":"1"},"data":{"node-cache.yaml":3}}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := newSource(Config{ConfigMap: Object{"kube-system", "node-cache"}, Changed: func(config.Config, error) {}, Now: time.Now}, api.dial)
		if err != nil {
			t.Fatal(err)
		}
		m := s.main.(*configMap)
		m.version = "11"
		err = m.readEvents(strings.NewReader(text))
		if m.version == "" {
			t.Error("the version was lost")
		}
		if s.mainContent.number > 0 && s.mainContent.err == nil && (!m.exists || strings.TrimSpace(m.text) == "" || !strings.Contains(text, "{")) {
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
	if err := m.readEvents(endless); !errors.Is(err, errUnreadable) {
		t.Errorf("got %v, want errUnreadable", err)
	}
}

// repeated is an endless text.
type repeated struct{}

// Read implements [io.Reader].
func (*repeated) Read(p []byte) (int, error) {
	return copy(p, bytes.Repeat([]byte("a"), len(p))), nil
}
