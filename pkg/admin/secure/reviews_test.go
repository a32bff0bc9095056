// SPDX-License-Identifier: Apache-2.0

package secure_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/secure"
	"github.com/nodecache/node-cache/pkg/watch"
)

// An apiServer answers reviews. Its zero value knows no token.
type apiServer struct {
	t       *testing.T // of the bubble with virtual time
	mu      sync.Mutex
	users   map[string]string   // by token
	pages   map[string][]string // by user
	down    bool                // it does not answer
	reviews int                 // TokenReviews so far
	err     error               // of the last reply
}

// RoundTrip implements [http.RoundTripper].
func (a *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	down := a.down
	a.mu.Unlock()
	if down {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	body, _ := io.ReadAll(r.Body)
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	a.mu.Lock()
	defer a.mu.Unlock()
	switch r.Method + " " + r.URL.Path {
	case "POST /apis/authentication.k8s.io/v1/tokenreviews":
		a.reviews++
		var review authenticationv1.TokenReview
		a.err = errors.Join(a.err, json.Unmarshal(body, &review))
		user, ok := a.users[review.Spec.Token]
		review.Status.Authenticated = ok
		review.Status.User = authenticationv1.UserInfo{Username: user, Groups: []string{"group"}, Extra: map[string]authenticationv1.ExtraValue{"pod": {"p"}}}
		w.WriteHeader(http.StatusCreated)
		a.err = errors.Join(a.err, json.NewEncoder(w).Encode(review))
	case "POST /apis/authorization.k8s.io/v1/subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		a.err = errors.Join(a.err, json.Unmarshal(body, &review))
		s := review.Spec
		if s.NonResourceAttributes.Verb != "get" || len(s.Groups) != 1 || s.Extra["pod"][0] != "p" {
			a.err = fmt.Errorf("asked for %+v", s)
		}
		for _, page := range a.pages[s.User] {
			review.Status.Allowed = review.Status.Allowed || page == s.NonResourceAttributes.Path
		}
		w.WriteHeader(http.StatusCreated)
		a.err = errors.Join(a.err, json.NewEncoder(w).Encode(review))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
	return w.Result(), nil
}

// set changes the server.
func (a *apiServer) set(change func(*apiServer)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// asked returns the number of tokens that were checked.
func (a *apiServer) asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reviews
}

// reviewed runs a test in virtual time with an API server that lets prometheus read /metrics, and knows other.
func reviewed(t *testing.T, test func(a *apiServer, r *secure.Reviews)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &apiServer{t: t, users: map[string]string{"good": "prometheus", "weak": "other"}, pages: map[string][]string{"prometheus": {"/metrics", "/status"}}}
		client, err := watch.ClientOver(&http.Client{Transport: a}, "http://api")
		assert.NoError(t, err)
		test(a, secure.New(client, slog.New(slog.DiscardHandler)))
		if a.err != nil {
			t.Error(a.err)
		}
	})
}

const scraper, pod = "10.244.1.1", "10.244.2.2"

// code returns the status of a request with a token, 200 if it is allowed.
func code(r *secure.Reviews, client, token, page string) int {
	q := httptest.NewRequest(http.MethodGet, "https://node"+page, http.NoBody)
	q.Header.Set("Authorization", "Bearer "+token)
	if v := r.Authorize(q, netip.MustParseAddr(client)); !v.Allowed() {
		return v.Code
	}
	return http.StatusOK
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, method, header, page string
		want                       int
		why                        string
	}{
		{"Prometheus", "GET", "Bearer good", "/metrics", 0, ""},
		{"a head", "HEAD", "Bearer good", "/metrics", 0, ""},
		{"the scheme in lower case", "GET", "bearer good", "/metrics", 0, ""},
		{"another page", "GET", "Bearer good", "/top", 403, `"prometheus" may not get the URL "/top"`},
		{"another account", "GET", "Bearer weak", "/metrics", 403, `"other" may not get the URL "/metrics"`},
		{"another token", "GET", "Bearer bad", "/metrics", 401, "the token is not valid"},
		{"no token", "GET", "", "/metrics", 401, "this address needs a token"},
		{"an empty token", "GET", "Bearer ", "/metrics", 401, "this address needs a token"},
		{"another scheme", "GET", "Basic good", "/metrics", 401, "this address needs a token"},
		{"a change", "POST", "Bearer good", "/metrics", 405, "only GET and HEAD"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			reviewed(t, func(a *apiServer, r *secure.Reviews) {
				t := a.t
				q := httptest.NewRequest(tt.method, "https://node"+tt.page, http.NoBody)
				if tt.header != "" {
					q.Header.Set("Authorization", tt.header)
				}
				for range 2 { // the second one from memory
					if v := r.Authorize(q, netip.MustParseAddr(scraper)); v.Code != tt.want || !strings.HasPrefix(v.Why, tt.why) {
						t.Errorf("got %d %q, want %d %q", v.Code, v.Why, tt.want, tt.why)
					}
				}
			})
		})
	}
}

// TestVerdictsAreKept counts what the API server is asked over an hour of scrapes, and has a deleted token refused in time.
func TestVerdictsAreKept(t *testing.T) {
	t.Parallel()
	reviewed(t, func(a *apiServer, r *secure.Reviews) {
		t := a.t
		for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(15 * time.Second) {
			assert.Equal(t, "a scrape", 200, code(r, scraper, "good", "/metrics"))
		}
		assert.Equal(t, "checks in an hour", 30, a.asked())
		assert.Equal(t, "an account without the permission", 403, code(r, pod, "weak", "/metrics"))
		a.set(func(a *apiServer) { a.pages["other"] = []string{"/metrics"}; delete(a.users, "good") })
		assert.Equal(t, "the same, at once", 403, code(r, pod, "weak", "/metrics"))
		time.Sleep(11 * time.Second)
		assert.Equal(t, "after 10 s with the permission", 200, code(r, pod, "weak", "/metrics"))
		time.Sleep(2*time.Minute - 11*time.Second)
		assert.Equal(t, "a deleted token after 2 min", 401, code(r, scraper, "good", "/metrics"))
		assert.Equal(t, "counts", secure.Stats{Allowed: 31, Denied: 1, Unauthenticated: 1}, r.Stats())
	})
}

// TestNoAPIServer reads metrics while the API server does not answer: for ten minutes with a token that was allowed before, without a
// wait for each page, and not with others.
func TestNoAPIServer(t *testing.T) {
	t.Parallel()
	reviewed(t, func(a *apiServer, r *secure.Reviews) {
		t := a.t
		assert.Equal(t, "before", 200, code(r, scraper, "good", "/metrics"))
		a.set(func(a *apiServer) { a.down = true })
		began, waited := time.Now(), time.Duration(0)
		for time.Since(began) < 10*time.Minute-time.Second {
			at := time.Now()
			if got := code(r, scraper, "good", "/metrics"); got != 200 {
				t.Fatalf("%d after %s", got, time.Since(began))
			}
			waited = max(waited, time.Since(at))
			time.Sleep(5 * time.Second)
		}
		assert.Equal(t, "longest wait of a page", 3*time.Second, waited)
		time.Sleep(10 * time.Second)
		assert.Equal(t, "after ten minutes", 503, code(r, scraper, "good", "/metrics"))
		assert.Equal(t, "another token", 503, code(r, pod, "weak", "/metrics"))
		a.set(func(a *apiServer) { a.down = false })
		assert.Equal(t, "once it answers", 200, code(r, scraper, "good", "/metrics"))
	})
}

// TestLongError has an API server that refuses with a long text: the log has its beginning.
func TestLongError(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Message: strings.Repeat("no ", 100_000), Code: http.StatusInternalServerError})
	assert.NoError(t, err)
	refuses := roundTripper(func(*http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		_, err := w.Write(text)
		return w.Result(), err
	})
	client, err := watch.ClientOver(&http.Client{Transport: refuses}, "http://api")
	assert.NoError(t, err)
	var log bytes.Buffer
	assert.Equal(t, "status", http.StatusServiceUnavailable, code(secure.New(client, slog.New(slog.NewTextHandler(&log, nil))), scraper, "good", "/metrics"))
	if line := log.String(); !strings.Contains(line, "creating a TokenReview: ") || !strings.Contains(line, "no no no") || len(line) > 2<<10 {
		t.Errorf("%d bytes: %.300s", len(line), line)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestTokenFlood has one pod, and then twenty, send made-up tokens without end: the API server gets few of them, a token that was allowed is
// never refused or delayed, and beside one pod a new token is checked at once.
func TestTokenFlood(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		pods   int
		checks int // of made-up tokens in ten minutes, at most
	}{
		{"one pod", 1, 3 + 600/5},
		{"twenty pods", 20, 10 + 600*2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			reviewed(t, func(a *apiServer, r *secure.Reviews) {
				t := a.t
				assert.Equal(t, "a scrape before", 200, code(r, scraper, "good", "/metrics"))
				own, made, limited := 1, 0, 0
				for at := range 600 * 10 {
					for pod := range tt.pods {
						made++
						if code(r, fmt.Sprintf("10.244.2.%d", pod), fmt.Sprint("made-up", made), "/metrics") == http.StatusTooManyRequests {
							limited++
						}
					}
					if at%150 == 0 {
						before, asked := time.Now(), a.asked()
						assert.Equal(t, "a scrape", 200, code(r, scraper, "good", "/metrics"))
						assert.Equal(t, "its delay", 0, time.Since(before))
						own += a.asked() - asked
					}
					time.Sleep(100 * time.Millisecond)
				}
				if got := a.asked() - own; got > tt.checks || got < tt.checks*9/10 || got+limited != made {
					t.Errorf("%d made-up tokens of %d were checked, %d refused; want %d checked at most", got, made, limited, tt.checks)
				}
				if tt.pods == 1 {
					assert.Equal(t, "a new token", 200, code(r, scraper, "good", "/status"))
				}
			})
		})
	}
}

// TestRefusal has an API server that refuses reviews, as without the permission to create them.
func TestRefusal(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "tokenreviews is forbidden", "code": 403}`)
	}))
	t.Cleanup(api.Close)
	client, err := watch.ClientOver(api.Client(), api.URL)
	assert.NoError(t, err)
	r := secure.New(client, slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		assert.Equal(t, "status", 503, code(r, scraper, "secret", "/metrics"))
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "creating a TokenReview: tokenreviews is forbidden") || strings.Contains(got, "secret") {
		t.Errorf("the log is %s", got)
	}
}
