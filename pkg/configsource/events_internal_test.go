// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/remote"
)

// withPod returns a configuration with a pod, the subject of the tests' events.
func withPod() Config {
	return Config{Pod: types.NamespacedName{Namespace: "kube-system", Name: "node-cache-x1"}, PodUID: "0ca1", Node: "node-1"}
}

// eventTexts formats events.
func eventTexts(events []map[string]any) (words []string) {
	for _, e := range events {
		words = append(words, fmt.Sprintf("%s %s ×%v: %s", e["type"], e["reason"], e["count"], e["message"]))
	}
	return words
}

// TestEvents has configurations refused and applied.
func TestEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, withPod())
		w.api.putText(size(4))
		synctest.Wait()
		if n := len(w.api.written()); n > 0 {
			t.Errorf("%d events about good configurations, want none", n)
		}
		w.api.putText("cache: {sise: 1Mi, minTTL: 5}\n")
		synctest.Wait()
		time.Sleep(time.Minute)
		w.api.putText(size(5))
		synctest.Wait()
		time.Sleep(time.Minute)
		w.api.putText(size(6))
		synctest.Wait()
		want := []string{
			"Warning ConfigRefused ×1: the running configuration stays: configmap kube-system/node-cache:1:9: cache.sise: unknown key (hint: did you mean \"size\"?) (and 1 more)",
			"Normal ConfigApplied ×1: configuration applied, generation 3",
			"Warning ConfigNeedsRestart ×1: a restart is needed for listen.port; all other keys are in use",
		}
		assert.Same(t, "events", want, eventTexts(w.api.written()))
		about := map[string]any{"apiVersion": "v1", "kind": "Pod", "namespace": "kube-system", "name": "node-cache-x1", "uid": "0ca1"}
		assert.Same[any](t, "about", about, w.api.written()[0]["involvedObject"])
		if st := w.Status(); st.EventsWritten != 3 || st.EventsFailed != 0 || st.EventsDropped != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestEventsAgain repeats one refusal: it is one Event with a count, as long as the server keeps it.
func TestEventsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, withPod())
		for range 3 {
			w.events.refused(errors.New("bad"))
			time.Sleep(time.Minute)
		}
		want := "Warning ConfigRefused ×3: the running configuration stays: bad"
		assert.Equal(t, "events", want, strings.Join(eventTexts(w.api.written()), "; "))
		w.api.set(func() { w.api.events = nil }) // as if its hour were over
		w.events.refused(errors.New("bad"))
		time.Sleep(time.Minute)
		if got := strings.Join(eventTexts(w.api.written()), "; "); got != strings.Replace(want, "×3", "×1", 1) {
			t.Errorf("events %q, want one, anew", got)
		}
		time.Sleep(time.Hour)
		w.events.refused(errors.New("bad"))
		synctest.Wait()
		if n := len(w.api.written()); n != 2 {
			t.Errorf("%d events, want a second after an hour", n)
		}
	})
}

// TestEventsLimit has a thousand different refusals within ten minutes. Reloads do not wait for events.
func TestEventsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, withPod())
		for n := range 1000 {
			before := time.Now()
			w.events.refused(fmt.Errorf("bad %d", n))
			if took := time.Since(before); took > 0 {
				t.Fatalf("waited %s", took)
			}
			time.Sleep(600 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		all := eventTexts(w.api.written())
		if n := len(all); n < eventBurst+16 || n > eventBurst+22 || !strings.HasSuffix(all[n-1], "bad 999") {
			t.Errorf("%d events, want one each half minute, the last of them the last: %q", n, all)
		}
		if st := w.Status(); st.EventsWritten+st.EventsDropped != 1000 {
			t.Errorf("%d written, %d dropped, want 1000 in all", st.EventsWritten, st.EventsDropped)
		}
	})
}

// TestEventsFail has the API server down, and then without the permission.
func TestEventsFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, withPod())
		w.api.set(func() { w.api.noEvents = http.StatusForbidden })
		w.events.refused(errors.New("bad"))
		synctest.Wait()
		if st := w.Status(); st.EventsFailed != 1 || !strings.Contains(w.logged(), "grant create and patch of events in namespace kube-system") {
			t.Errorf("status %+v, want one failure at once and a hint:\n%s", st, w.logged())
		}
		w.api.set(func() { w.api.noEvents = http.StatusInternalServerError })
		w.events.refused(errors.New("worse"))
		time.Sleep(time.Second)
		w.api.set(func() { w.api.noEvents = 0 })
		time.Sleep(time.Minute)
		if st := w.Status(); st.EventsFailed != 1 || st.EventsWritten != 1 {
			t.Errorf("status %+v, want the second written after a while", st)
		}
		w.api.set(func() { w.api.away = true })
		w.events.refused(errors.New("worst"))
		time.Sleep(time.Minute)
		if st := w.Status(); st.EventsFailed != 2 {
			t.Errorf("status %+v, want a second failure", st)
		}
	})
}

// TestSummarize cuts messages to the length that the API accepts.
func TestSummarize(t *testing.T) {
	t.Parallel()
	if got := summarize("", errors.New(strings.Repeat("x", 2000))); len(got) != remote.MaxText {
		t.Errorf("%d bytes, want %d", len(got), remote.MaxText)
	}
	long := &config.Error{Path: "file", Problems: []config.Problem{{Path: "key", What: strings.Repeat("ä", 600)}}}
	if got := summarize("", long); len(got) > remote.MaxText || len(got) < remote.MaxText-2 || !strings.Contains(got, "ä… (cut, ") {
		t.Errorf("%d bytes, ending in %q", len(got), got[len(got)-40:])
	}
}
