// SPDX-License-Identifier: Apache-2.0

package secure

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/watch"
)

const (
	// allowedFor is how long a client reads a page before the API server is asked again, refusedFor how long it is refused.
	allowedFor = 2 * time.Minute
	refusedFor = 10 * time.Second
	// staleFor is how long a client reads a page while the API server cannot be asked: an outage of the API server is when metrics are
	// needed. retryAfter is the time between attempts meanwhile.
	staleFor   = 10 * time.Minute
	retryAfter = 10 * time.Second
	// reviewTimeout bounds the time of a check.
	reviewTimeout = 3 * time.Second
	// maxVerdicts bounds the allowed, and the refused, and maxClients the addresses that are kept, in some 100 bytes each.
	maxVerdicts = 256
	maxClients  = 1024
	// Checks of tokens that were not allowed lately: so many at once, and a second, for all clients, and for each address. A token that
	// was allowed is renewed without these limits, so made-up ones do not delay it.
	allBurst, allRate       = 10, 2
	clientBurst, clientRate = 3, 0.2
)

// Stats counts the checks by the API server.
type Stats struct {
	Allowed         uint64
	Denied          uint64 // tokens whose user may not get the page
	Unauthenticated uint64 // tokens that are not valid
	Failed          uint64 // the API server could not be asked
	Limited         uint64 // checks that a limit refused
}

// Reviews asks the API server by TokenReview and SubjectAccessReview whether a token may get a page, and keeps the verdicts for a time.
type Reviews struct {
	client   *watch.Client
	log      *slog.Logger
	allowed  *cache.LRUExpireCache // *grant by key
	refused  *cache.LRUExpireCache // Verdict by key; of its own, so that made-up tokens drop no allowed ones
	clients  *cache.LRUExpireCache // *rate.Limiter by netip.Addr
	all      *rate.Limiter
	warned   rate.Sometimes // limits the log
	counts   struct{ allowed, denied, unauthenticated, failed, limited atomic.Uint64 }
	creating sync.Mutex // guards the creation of an item of clients
}

// A key is the hash of a token and a page: no copy of a token is kept, and long paths take no memory.
type key [sha256.Size]byte

// A grant is an allowed verdict.
type grant struct {
	mu  sync.Mutex // guards due
	due time.Time  // when to ask again
}

// New returns Reviews that asks through client.
func New(client *watch.Client, log *slog.Logger) *Reviews {
	return &Reviews{
		client: client, log: log, warned: rate.Sometimes{First: 1, Interval: 10 * time.Second},
		allowed: cache.NewLRUExpireCache(maxVerdicts), refused: cache.NewLRUExpireCache(maxVerdicts), clients: cache.NewLRUExpireCache(maxClients),
		all: rate.NewLimiter(allRate, allBurst),
	}
}

// Authorize decides about a request of a client at an address. It may wait for the API server, up to reviewTimeout.
func (r *Reviews) Authorize(q *http.Request, client netip.Addr) admin.Verdict {
	kind, token, _ := strings.Cut(q.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(kind, "Bearer") || token == "" {
		return admin.Verdict{Code: http.StatusUnauthorized, Why: "this address needs a token of Kubernetes\nhint: send Authorization: Bearer TOKEN"}
	}
	if q.Method != http.MethodGet && q.Method != http.MethodHead {
		return admin.Verdict{Code: http.StatusMethodNotAllowed, Why: "only GET and HEAD are allowed here"}
	}
	page := q.URL.Path
	k := key(sha256.Sum256([]byte(token + "\n" + page))) // a header has no line break
	if known, ok := r.allowed.Get(k); ok {
		return r.renew(q.Context(), known.(*grant), k, token, page)
	}
	if known, ok := r.refused.Get(k); ok {
		return known.(admin.Verdict)
	}
	if !r.limiter(client).Allow() || !r.all.Allow() {
		r.counts.limited.Add(1)
		return admin.Verdict{Code: http.StatusTooManyRequests, Why: "too many tokens to check\nhint: try again in some seconds"}
	}
	return r.check(q.Context(), &grant{}, k, token, page)
}

// renew asks again about an allowed token once that is due. Meanwhile other requests with it are served, and this one too if the API
// server cannot be asked.
func (r *Reviews) renew(ctx context.Context, g *grant, k key, token, page string) admin.Verdict {
	now := time.Now() //nolint:forbidigo // the cache uses this clock, too
	g.mu.Lock()
	due := !now.Before(g.due)
	if due {
		g.due = now.Add(retryAfter)
	}
	g.mu.Unlock()
	if !due {
		return admin.Verdict{}
	}
	v := r.check(ctx, g, k, token, page)
	if v.Code == http.StatusServiceUnavailable {
		return admin.Verdict{}
	}
	return v
}

// check asks the API server and keeps its verdict, an allowed one in g.
func (r *Reviews) check(ctx context.Context, g *grant, k key, token, page string) admin.Verdict {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout) // also for a client that has gone: the verdict is kept
	defer cancel()
	v, err := r.ask(ctx, token, page)
	switch {
	case err != nil:
		r.counts.failed.Add(1)
		r.warned.Do(func() {
			r.log.WarnContext(ctx, "checking a token of the admin server failed", "err", remote.Error(err))
		})
		return admin.Verdict{Code: http.StatusServiceUnavailable, Why: "the API server cannot be asked about the token\nhint: the log has the reason"}
	case v.Allowed():
		r.counts.allowed.Add(1)
		g.mu.Lock()
		g.due = time.Now().Add(allowedFor) //nolint:forbidigo // the cache uses this clock, too
		g.mu.Unlock()
		r.allowed.Add(k, g, staleFor)
		return v
	case v.Code == http.StatusForbidden:
		r.counts.denied.Add(1)
	default:
		r.counts.unauthenticated.Add(1)
	}
	r.allowed.Remove(k)
	r.refused.Add(k, v, refusedFor)
	return v
}

// ask returns the verdict of the API server.
func (r *Reviews) ask(ctx context.Context, token, page string) (admin.Verdict, error) {
	identity := authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token},
	}
	if err := r.create(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", &identity); err != nil {
		return admin.Verdict{}, fmt.Errorf("creating a TokenReview: %w", err)
	}
	if !identity.Status.Authenticated {
		return admin.Verdict{Code: http.StatusUnauthorized, Why: "the token is not valid"}, nil
	}
	user := identity.Status.User
	access := authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: page, Verb: "get"},
		},
	}
	for name, values := range user.Extra {
		access.Spec.Extra[name] = authorizationv1.ExtraValue(values)
	}
	if err := r.create(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &access); err != nil {
		return admin.Verdict{}, fmt.Errorf("creating a SubjectAccessReview: %w", err)
	}
	if !access.Status.Allowed || access.Status.Denied {
		return admin.Verdict{Code: http.StatusForbidden, Why: fmt.Sprintf("%.100q may not get the URL %.100q\nhint: bind a ClusterRole with nonResourceURLs to it, such as node-cache-metrics-reader", user.Username, page)}, nil
	}
	return admin.Verdict{}, nil
}

// create sends an object and reads the reply into it.
func (r *Reviews) create(ctx context.Context, path string, object runtime.Object) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	result := r.client.Post().AbsPath(path).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(text).MaxRetries(0).Do(ctx)
	if err := result.Error(); err != nil { // unlike Raw it has the message of the API server
		return err
	}
	reply, err := result.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(reply, object)
}

// limiter returns the limit of an address.
func (r *Reviews) limiter(client netip.Addr) *rate.Limiter {
	r.creating.Lock()
	defer r.creating.Unlock()
	if known, ok := r.clients.Get(client); ok {
		return known.(*rate.Limiter)
	}
	l := rate.NewLimiter(clientRate, clientBurst)
	r.clients.Add(client, l, time.Hour)
	return l
}

// Stats may be called at any time.
func (r *Reviews) Stats() Stats {
	return Stats{
		Allowed: r.counts.allowed.Load(), Denied: r.counts.denied.Load(), Unauthenticated: r.counts.unauthenticated.Load(),
		Failed: r.counts.failed.Load(), Limited: r.counts.limited.Load(),
	}
}
