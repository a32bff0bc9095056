// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/remote"
)

// A kindStatus is the sync state of one kind, from one feed or one per namespace. Its age is that of the feed confirmed longest ago.
type kindStatus struct {
	kind    zone.Kind   // kind of the objects in the store
	counted zone.Kind   // kind in Stats: Imports or ImportSlices for a cluster set, else kind
	store   *zone.Store // nil: no store receives the confirmations

	onConfirmed func(at time.Time) // called after each confirmation; nil: not needed

	events, restarts, failures atomic.Uint64

	mu              sync.Mutex // guards the following fields
	arrival, change Histogram
	feeds           []*feedStatus
	invalid         map[types.NamespacedName]string // why an object is not served in full; at most maxInvalid entries
}

// maxInvalid bounds the invalid objects that are counted: a user can make many.
const maxInvalid = 1000

// noteInvalid records why an object is not served in full. With a nil error, the object is served or was removed.
func (k *kindStatus) noteInvalid(namespace, name string, why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if why == nil {
		delete(k.invalid, key)
		return
	}
	if k.invalid == nil {
		k.invalid = make(map[types.NamespacedName]string)
	}
	if len(k.invalid) < maxInvalid {
		k.invalid[key] = remote.Text(why.Error())
	}
}

// retainInvalid forgets the invalid objects for which keep returns false.
func (k *kindStatus) retainInvalid(keep func(namespace, name string) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.invalid, func(key types.NamespacedName, _ string) bool { return !keep(key.Namespace, key.Name) })
}

// A feedStatus is one feed's part of a kindStatus. The kindStatus's mutex guards what is not atomic.
type feedStatus struct {
	newest, upTo atomic.Uint64 // see KindStats.Newest and UpTo

	confirmedAt time.Time // boot time of the last confirmation; zero: never
	synced      bool      // the feed was confirmed once, or the server forbids it
	reason      string    // reason of the last error; empty: none, or the state was confirmed since
	lastError   string
}

// add adds a feed to the kind and returns its status.
func (k *kindStatus) add() *feedStatus {
	p := new(feedStatus)
	k.mu.Lock()
	k.feeds = append(k.feeds, p)
	k.mu.Unlock()
	return p
}

// confirmed records that the feed was up to date at that time. It reports whether this synced the feed, and whether it
// ended an error.
func (k *kindStatus) confirmed(p *feedStatus, at time.Time) (settled, healed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if at = k.bootTime(at); at.After(p.confirmedAt) {
		p.confirmedAt = at
	}
	settled, healed = !p.synced, p.reason != ""
	p.synced, p.reason, p.lastError = true, "", ""
	if oldest := k.oldestConfirmedLocked(); k.store != nil && !oldest.IsZero() {
		k.store.ConfirmFresh(k.kind, oldest)
		k.store.SetSynced(k.kind)
	}
	if k.onConfirmed != nil {
		k.onConfirmed(p.confirmedAt)
	}
	return settled, healed
}

// applied counts an event that arrived at came and was applied at now. If it changed the store, and the object has the time of
// its change, applied also counts the delay since that time.
func (k *kindStatus) applied(o object, now, came time.Time, changed bool) {
	k.events.Add(1)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.arrival.observe(now.Sub(came))
	if at, ok := changedAt(o); ok && changed {
		k.change.observe(now.Sub(at))
	}
}

// failed records an error. It reports whether its reason is new, and whether the feed counts as synced now, being forbidden to list.
func (k *kindStatus) failed(p *feedStatus, reason, text string) (news, settled bool) {
	k.failures.Add(1)
	k.mu.Lock()
	defer k.mu.Unlock()
	news, settled = reason != p.reason, reason == reasonForbidden && !p.synced
	p.reason, p.lastError, p.synced = reason, text, p.synced || settled
	return news, settled
}

// age returns the time since the feed's last confirmation, and false if there was none.
func (k *kindStatus) age(p *feedStatus, now time.Time) (time.Duration, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(0, k.bootTime(now).Sub(p.confirmedAt)), !p.confirmedAt.IsZero()
}

// bootTime returns now plus the time that the host was suspended, as the store has recorded it.
func (k *kindStatus) bootTime(now time.Time) time.Time {
	if k.store == nil {
		return now
	}
	return k.store.BootTime(now)
}

// oldestConfirmedLocked returns the last confirmation of the feed confirmed longest ago, zero if a feed was never confirmed.
func (k *kindStatus) oldestConfirmedLocked() time.Time {
	oldest := k.feeds[0].confirmedAt
	for _, p := range k.feeds[1:] {
		if p.confirmedAt.Before(oldest) {
			oldest = p.confirmedAt
		}
	}
	return oldest
}

// stats returns the counters.
func (k *kindStatus) stats(now time.Time) KindStats {
	s := KindStats{
		Kind:     k.counted,
		Events:   k.events.Load(),
		Restarts: k.restarts.Load(),
		Failures: k.failures.Load(),
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s.Arrival, s.Change = k.arrival, k.change
	s.Invalid = len(k.invalid)
	for key, why := range k.invalid { // the first by name
		if text := key.String() + ": " + why; s.FirstInvalid == "" || text < s.FirstInvalid {
			s.FirstInvalid = text
		}
	}
	if oldest := k.oldestConfirmedLocked(); !oldest.IsZero() {
		s.Synced, s.Age = true, max(0, k.bootTime(now).Sub(oldest))
	}
	s.UpTo = k.feeds[0].upTo.Load()
	for _, p := range k.feeds {
		s.Newest, s.UpTo = max(s.Newest, p.newest.Load()), min(s.UpTo, p.upTo.Load())
	}
	for _, p := range k.feeds {
		if p.lastError != "" {
			s.LastError = p.lastError
			break
		}
	}
	return s
}

const bucketCount = 15 // Buckets and the overflow bucket

// Buckets returns the upper bounds of the histograms. Longer durations are counted in one more bucket.
func Buckets() [bucketCount - 1]time.Duration {
	return [bucketCount - 1]time.Duration{
		50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, time.Millisecond,
		5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
		100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2500 * time.Millisecond, 10 * time.Second,
	}
}

// Stats are the counters of a source and its current state.
type Stats struct {
	Kinds        []KindStats // one for each kind of the stores, in the order of zone.Kind
	ServiceWatch KindStats   // state of the ServiceWatch; only Synced and LastError are set
	OwnPods      *KindStats  // state of the node's pods; nil: they are not watched
	PodSource    string      // where OwnPods come from, SourceKubelet or SourceServer; empty: the kubelet has sent no list yet
	Requests     uint64      // requests sent to the API server; 0 for manifests
	Panics       uint64      // recovered panics, each also logged with its stack
}

// KindStats are the counters and state of one kind.
type KindStats struct {
	Kind      zone.Kind
	Synced    bool          // the first list is complete
	Age       time.Duration // time since the last confirmation; 0 before the first list
	Events    uint64        // objects put or deleted, including those of lists
	Restarts  uint64        // watches begun after the first
	Failures  uint64        // failed or abandoned requests and watches
	LastError string        // begins with its reason ("forbidden: …"); empty once the state is confirmed again

	// Resource versions, 0 for manifests: of the newest object that was applied, and that up to which all changes were.
	Newest, UpTo uint64

	Invalid      int    // objects that are not served in full: imports, and Services with External; at most 1,000 count
	FirstInvalid string // the first of them by name, and why; empty: none

	Arrival Histogram // delay from reading an event to applying it; lists do not count
	Change  Histogram // delay from the change time in the object to applying it; only EndpointSlices have one
}

// A Histogram counts durations by Buckets.
type Histogram struct {
	Counts [bucketCount]uint64 // one for each bucket, not cumulative
	Sum    time.Duration
}

// observe counts d. If the clock differs from the server's, d may be negative and counts as 0.
func (h *Histogram) observe(d time.Duration) {
	d = max(d, 0)
	i := 0
	for bounds := Buckets(); i < len(bounds) && d > bounds[i]; i++ {
		continue
	}
	h.Counts[i]++
	h.Sum += d
}
