// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/watch"
)

// TestConfigMapWatched edits a ConfigMap repeatedly.
func TestConfigMapWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, Config{})
		synctest.Wait()
		edited := time.Now()
		w.api.putText(size(4))
		synctest.Wait()
		if took := time.Since(edited); took > 0 {
			t.Errorf("an edit took %s, want no waiting at all", took)
		}
		w.expect(t, "after an edit", "applied 4")
		w.api.putText("cache: {sise: 1Mi}\n")
		synctest.Wait()
		w.expect(t, "after a mistake", `refused configmap kube-system/node-cache:1:9: cache.sise: unknown key`+"\n"+`  hint: did you mean "size"?`)
		w.api.putText(size(4))
		synctest.Wait()
		w.expect(t, "after it was taken back", "applied 4")
		w.api.put(map[string]string{Key: size(4), "other": "text"})
		w.api.bookmark()
		synctest.Wait()
		w.expect(t, "after an edit of another key", "")
		if got := w.api.called(); !slices.Equal(got, []string{"list", "watch 11"}) {
			t.Errorf("requests: %q, want one list and one watch", got)
		}
	})
}

// TestReload reads and applies what has not changed.
func TestReload(t *testing.T) {
	t.Parallel()
	path := proctest.WriteFile(t, filepath.Join(t.TempDir(), "config.yaml"), size(3))
	for _, file := range []string{path, ""} {
		reload := make(chan context.CancelFunc, 2)
		w := newHarness(t, Config{File: file, UntilReload: func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, stop := context.WithCancel(ctx)
			reload <- stop
			return ctx, stop
		}})
		w.api.putText(size(3))
		end := w.begin(t)
		(<-reload)()
		proctest.Eventually(t, time.Minute, w.Name()+" is applied again", func() bool { return w.saying() == "loaded 3; applied 3" })
		end()
	}
}

// TestConfigMapLastWins makes ten edits while the agent applies the first.
func TestConfigMapLastWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{})
		w.api.putText(size(3))
		w.busy = 10 * time.Second
		defer w.begin(t)()
		w.reports()
		for n := range 10 {
			w.api.putText(size(10 + n))
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		w.expect(t, "after ten edits in a row", "applied 10; applied 19")
	})
}

// TestReportsOnlyChanges makes an edit between two steps of a report: it is reported next.
func TestReportsOnlyChanges(t *testing.T) {
	t.Parallel()
	w := newHarness(t, Config{})
	w.setContent(&w.mainContent, content{})
	first := w.combined(t.Context())
	w.setContent(&w.mainContent, content{})
	second := w.combined(t.Context())
	if !w.markReported(&first) || !w.markReported(&second) || w.markReported(&second) {
		t.Error("want each content reported, once")
	}
}

// TestConfigMapGone deletes the object, briefly and for longer.
func TestConfigMapGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, Config{})
		w.api.remove()
		time.Sleep(time.Second)
		w.api.putText(size(4))
		time.Sleep(time.Minute)
		w.expect(t, "replaced", "applied 4")
		w.api.remove()
		time.Sleep(time.Minute)
		w.expect(t, "deleted", "refused ConfigMap kube-system/node-cache does not exist")
		w.api.putText(size(4))
		synctest.Wait()
		w.expect(t, "made anew", "applied 4")
	})
}

// TestConfigMapEmpty has objects without a configuration, which are not the built-in defaults.
func TestConfigMapEmpty(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		data map[string]string
		want string
	}{
		{"no data", nil, "no key node-cache.yaml"},
		{"another key", map[string]string{"config.yaml": size(4)}, "no key node-cache.yaml"},
		{"an empty text", map[string]string{Key: ""}, "the key node-cache.yaml is empty"},
		{"spaces", map[string]string{Key: " \n\n"}, "the key node-cache.yaml is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := watching(t, Config{})
				w.api.put(tt.data)
				synctest.Wait()
				w.expect(t, tt.name, "refused ConfigMap kube-system/node-cache: "+tt.want)

				again := newHarness(t, Config{})
				again.api.put(tt.data)
				_, _, err := again.Load(t.Context())
				if wrong := (*hint.Error)(nil); !errors.As(err, &wrong) || !strings.HasSuffix(err.Error(), tt.want) || wrong.Hint == "" {
					t.Errorf("at the start: %v, want an error with a hint", err)
				}
			})
		})
	}
}

// TestConfigMapPaths has a relative path: there is no folder that it could be relative to.
func TestConfigMapPaths(t *testing.T) {
	t.Parallel()
	here, err := filepath.Abs("kept")
	assert.NoError(t, err)
	w := newHarness(t, Config{})
	w.api.putText("snapshot: {folder: kept}\n")
	cfg, _, err := w.Load(t.Context())
	if err != nil || cfg.Snapshot.Folder != here {
		t.Errorf("snapshot.folder is %q, %v, want %q", cfg.Snapshot.Folder, err, here)
	}
}

// TestConfigMapResumed breaks and ends watches.
func TestConfigMapResumed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, Config{})
		synctest.Wait()
		w.api.cut(io.ErrUnexpectedEOF)
		w.api.putText(size(4)) // while no watch is open
		time.Sleep(10 * time.Second)
		w.expect(t, "after a connection that broke", "applied 4")
		w.api.cut(nil)
		time.Sleep(10 * time.Second)
		w.api.set(func() { // at once: the next watch begins without a delay
			w.api.cutLocked(io.ErrUnexpectedEOF)
			w.api.putLocked(map[string]string{Key: size(5)})
			w.api.forgetLocked()
		})
		time.Sleep(10 * time.Second)
		w.expect(t, "after a history that is lost", "applied 5")
		w.api.set(func() {
			for p := range w.api.watches {
				_, _ = io.WriteString(p, "<html>this is a proxy</html>\n")
			}
		})
		time.Sleep(10 * time.Second)
		w.api.putText(size(6))
		synctest.Wait()
		w.expect(t, "after garbage", "applied 6")
		want := []string{"list", "watch 11", "watch 11", "watch 12", "watch 12", "list", "watch 13", "list", "watch 13"}
		if got := w.api.called(); !slices.Equal(got, want) {
			t.Errorf("requests: %q, want %q", got, want)
		}
		if st := w.Status(); !st.Reachable || w.api.most > 1 {
			t.Errorf("status %+v, %d requests at one time, want one at most", st, w.api.most)
		}
		if strings.Contains(w.logged(), "history lost") {
			t.Errorf("a lost history is no news:\n%s", w.logged())
		}
	})
}

// TestConfigMapLoadTimeout uses a server that is down: at the start, and then for an hour.
func TestConfigMapLoadTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, hangs := range []bool{false, true} {
			w := newHarness(t, Config{})
			w.api.away, w.api.hangs = !hangs, hangs
			began := time.Now()
			_, _, err := w.Load(t.Context())
			if took := time.Since(began); err == nil || took < loadTimeoutNoFallback || took > loadTimeoutNoFallback+time.Second {
				t.Errorf("alone, hangs %v: %v after %s, want an error after %s", hangs, err, took, loadTimeoutNoFallback)
			}
			if wrong := (*hint.Error)(nil); !errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), "reading ConfigMap kube-system/node-cache: unreachable: ") || wrong.Hint == "" {
				t.Errorf("alone: %v, want an error that reports it as unreachable, with a hint", err)
			}
		}
		w := newHarness(t, Config{LastGood: keepGood(t)})
		w.api.away = true
		began := time.Now()
		defer w.begin(t)()
		if took := time.Since(began); took > loadTimeout+time.Second {
			t.Errorf("with something to begin with: %s, want %s", took, loadTimeout)
		}
		w.expect(t, "at the start", "last good 7")
		before := w.Status().Requests
		time.Sleep(time.Hour)
		tries := w.Status().Requests - before
		if least, most := uint64(time.Hour/(lastBackoff+lastBackoff/2)), uint64(time.Hour/lastBackoff); tries < least || tries > most+10 {
			t.Errorf("%d tries in an hour, want %d to %d", tries, least, most)
		}
		st := w.Status()
		if !st.LastGoodInUse || st.Problem == nil || !strings.Contains(st.Problem.Error(), "unreachable") {
			t.Errorf("status %+v, want the last good one in use and the server unreachable", st)
		}
		if n := strings.Count(w.logged(), "configuration source unreadable"); n != 1 {
			t.Errorf("logged %d times that it is unreachable, want once:\n%s", n, w.logged())
		}
		w.api.putText(size(8))
		w.api.set(func() { w.api.away = false })
		time.Sleep(lastBackoff + lastBackoff/2)
		w.expect(t, "once it is back", "applied 8")
		if st := w.Status(); st.LastGoodInUse || st.Problem != nil {
			t.Errorf("status %+v, want no problem", st)
		}
		if !strings.Contains(w.logged(), "configuration source recovered") {
			t.Error("the log does not say that it is back")
		}
	})
}

// TestConfigMapCredentials has no credentials: with a last good configuration, they may come later.
func TestConfigMapCredentials(t *testing.T) {
	t.Parallel()
	api := newFakeAPI()
	api.putText(size(4))
	none := func(string, string) (*watch.Client, error) { return nil, errors.New("no token") }
	cfg := Config{ConfigMap: watched(), Apply: func(config.Config, error) (InUse, error) { return InUse{}, nil }, Now: time.Now}
	_, err := newSource(cfg, none)
	if wrong := (*hint.Error)(nil); !errors.As(err, &wrong) || err.Error() != "reading ConfigMap kube-system/node-cache: no token" || wrong.Hint == "" {
		t.Errorf("alone: %v, want why, with a hint", err)
	}
	folder := keepGood(t)
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{LastGood: folder})
		w.api.putText(size(4))
		reader := w.main.(*configMap).api
		reader.client, reader.dial = nil, none
		defer w.begin(t)()
		w.expect(t, "without a token", "last good 7")
		reader.mu.Lock()
		reader.dial = w.api.dial
		reader.mu.Unlock()
		time.Sleep(10 * time.Second)
		w.expect(t, "with a token", "applied 4")
	})
}

// TestConfigMapCreatedLater creates the object after the start.
func TestConfigMapCreatedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{})
		time.AfterFunc(10*time.Second, func() { w.api.putText(size(3)) })
		defer w.begin(t)()
		w.expect(t, "made after ten seconds", "loaded 3")

		behind := newHarness(t, Config{LastGood: keepGood(t)})
		defer behind.begin(t)()
		behind.expect(t, "not made", "last good 7")
		time.Sleep(time.Minute)
		behind.expect(t, "not made, a minute later", "")
		behind.api.putText(size(4))
		synctest.Wait()
		behind.expect(t, "made", "applied 4")
	})
}

// TestConfigMapDenied has the server deny requests.
func TestConfigMapDenied(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		code int
		want string
		hint string
		most time.Duration // until the change is applied
	}{
		{"forbidden", http.StatusForbidden, "reading ConfigMap kube-system/node-cache: forbidden: sorry", "grant list and watch of configmaps in namespace kube-system, with resourceNames [node-cache]", 30 * time.Second},
		{"unauthorized", http.StatusUnauthorized, "reading ConfigMap kube-system/node-cache: unauthorized: sorry", "check the service account", 30 * time.Second},
		{"busy", http.StatusTooManyRequests, "reading ConfigMap kube-system/node-cache: busy: sorry", "check the API server", 8 * time.Second},
		{"broken", http.StatusInternalServerError, "reading ConfigMap kube-system/node-cache: server error: sorry", "check the API server", 8 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := watching(t, Config{})
				w.api.set(func() { w.api.deny, w.api.denyWith = tt.code, "sorry" })
				w.api.cut(nil)
				time.Sleep(10 * time.Minute)
				p := w.Status().Problem
				if p == nil || p.Error() != tt.want || !strings.HasPrefix(p.Hint, tt.hint) {
					t.Fatalf("problem %+v, want %q", p, tt.want)
				}
				if log := w.logged(); strings.Count(log, "sorry") != 1 {
					t.Errorf("the log does not have it once:\n%s", log)
				}
				w.expect(t, "while the request is forbidden", "")
				w.api.putText(size(4))
				w.api.set(func() { w.api.deny = 0 })
				time.Sleep(tt.most)
				w.expect(t, "once the request is allowed", "applied 4")
			})
		})
	}
}

// TestConfigMapQuiet counts the requests of an hour without changes, and of one in which the server's watches hang.
func TestConfigMapQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, Config{})
		time.Sleep(time.Hour)
		if n := w.Status().Requests; n < 12 || n > 17 {
			t.Errorf("%d requests in an hour, want one each four to five minutes", n)
		}
		w.api.set(func() { w.api.hangs = true })
		time.Sleep(10 * time.Minute)
		if p := w.Status().Problem; p == nil || !strings.Contains(p.Error(), errNoAnswer.Error()) {
			t.Errorf("problem %v, want that it does not answer", p)
		}
		w.api.set(func() { w.api.hangs = false })
		w.api.putText(size(4))
		time.Sleep(30 * time.Second)
		if got := w.reports(); !strings.HasSuffix(got, "applied 4") {
			t.Errorf("reported %q, want the change", got)
		}
		if w.api.most > 1 {
			t.Errorf("%d requests at one time, want one", w.api.most)
		}
	})
}
