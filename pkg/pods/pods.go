// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Pod is what the agent knows of a pod. It does not change once an index has it.
type Pod struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Workload  string       `json:"workload"` // the pod's controller, such as Deployment/web; empty: none
	Addrs     []netip.Addr `json:"addrs"`    // at least one
	DNS       DNS          `json:"dns"`

	usage *Usage      // counters of the pod's queries; set by Put
	path  *SearchPath // see SearchPath
}

// SearchPath returns the pod's search path, nil if it is unknown or the agent must not try its suffixes for the pod.
func (p *Pod) SearchPath() *SearchPath { return p.path }

// String returns the namespace and the name.
func (p *Pod) String() string { return p.Namespace + "/" + p.Name }

// An Index finds pods by address. Its methods are safe for concurrent use, and Of takes no lock.
type Index struct {
	staleAfter time.Duration
	host       *Host // nil: pods get no search path
	unknown    Usage // counters of clients without a pod
	names      names

	byAddr      atomic.Pointer[map[netip.Addr]*Pod] // replaced on each change
	confirmedAt atomic.Pointer[time.Time]           // nil: the pods were never confirmed

	mu     sync.Mutex            // guards the following fields
	byName map[[2]string]*Pod    // by namespace and name
	users  map[netip.Addr][]*Pod // pods by address; an address with more than one has no pod in byAddr
	ended  map[string]*Counts    // counts of pods that have ended, by namespace; see namespaceLocked
}

// NewIndex returns an index without pods. Its state is stale if it was not confirmed for staleAfter. host and a pod's DNS give the
// pod's search path; if host is nil, pods have none.
func NewIndex(staleAfter time.Duration, host *Host) *Index {
	x := &Index{staleAfter: staleAfter, host: host, byName: map[[2]string]*Pod{}, users: map[netip.Addr][]*Pod{}, ended: map[string]*Counts{}}
	x.names.seed = maphash.MakeSeed()
	x.byAddr.Store(&map[netip.Addr]*Pod{})
	return x
}

// Of returns the pod that has the address, nil if there is none or more than one. It allocates nothing. stale: the pods were not
// confirmed for the time given to NewIndex, so another pod may have the address by now.
func (x *Index) Of(addr netip.Addr, now time.Time) (pod *Pod, stale bool) {
	if pod = (*x.byAddr.Load())[addr]; pod == nil {
		return nil, false
	}
	return pod, x.IsStale(now)
}

// IsStale reports whether the pods were never confirmed, or not for the time given to NewIndex.
func (x *Index) IsStale(now time.Time) bool {
	at := x.confirmedAt.Load()
	return at == nil || now.Sub(*at) > x.staleAfter
}

// Put adds a pod or replaces the one of the same name, and reports whether that changed the index.
func (x *Index) Put(p *Pod) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	k := [2]string{p.Namespace, p.Name}
	old := x.byName[k]
	if old != nil && old.Workload == p.Workload && slices.Equal(old.Addrs, p.Addrs) && old.DNS.equal(&p.DNS) {
		return false
	}
	p.usage, p.path = new(Usage), x.host.path(p.Namespace, &p.DNS)
	if old != nil {
		p.usage = old.usage
	}
	x.removeLocked(k)
	x.byName[k] = p
	x.namespaceLocked(p.Namespace)
	for _, addr := range p.Addrs {
		x.users[addr] = append(x.users[addr], p)
	}
	x.publishLocked()
	return true
}

// Delete removes a pod, and reports whether the index had it.
func (x *Index) Delete(namespace, name string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.endLocked([2]string{namespace, name}) {
		return false
	}
	x.publishLocked()
	return true
}

// Retain removes the pods for which keep returns false.
func (x *Index) Retain(keep func(namespace, name string) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k := range x.byName {
		if !keep(k[0], k[1]) {
			x.endLocked(k)
		}
	}
	x.publishLocked()
}

// Confirm records that the pods were up to date at a time.
func (x *Index) Confirm(at time.Time) { x.confirmedAt.Store(&at) }

// endLocked removes a pod, and adds its counts to those of its namespace's ended pods. It reports whether the index had the pod.
func (x *Index) endLocked(k [2]string) bool {
	if p := x.byName[k]; p != nil {
		x.namespaceLocked(p.Namespace).add(p.usage)
	}
	return x.removeLocked(k)
}

func (x *Index) removeLocked(k [2]string) bool {
	p := x.byName[k]
	if p == nil {
		return false
	}
	delete(x.byName, k)
	for _, addr := range p.Addrs {
		if rest := slices.DeleteFunc(x.users[addr], func(user *Pod) bool { return user == p }); len(rest) > 0 {
			x.users[addr] = rest
		} else {
			delete(x.users, addr)
		}
	}
	return true
}

// publishLocked builds anew the map that Of reads. A node has a few hundred pods at most.
func (x *Index) publishLocked() {
	byAddr := make(map[netip.Addr]*Pod, len(x.users))
	for addr, users := range x.users {
		if len(users) == 1 {
			byAddr[addr] = users[0]
		}
	}
	x.byAddr.Store(&byAddr)
}

// DumpVersion is the version of the records of Dump.
const DumpVersion = 1

// A dumpHead is the first record of a dump; the pods follow.
type dumpHead struct {
	Scope string        `json:"scope"` // the node and its cluster
	Age   time.Duration `json:"age"`   // time since the last confirmation, in ns
}

// Dump emits the pods as records, none if they were never confirmed.
func (x *Index) Dump(scope string, now time.Time, emit func([]byte) error) error {
	at := x.confirmedAt.Load()
	if at == nil {
		return nil
	}
	x.mu.Lock()
	list := []any{dumpHead{scope, max(0, now.Sub(*at))}}
	for _, p := range x.byName {
		list = append(list, p)
	}
	x.mu.Unlock()
	for _, record := range list {
		text, err := json.Marshal(record)
		if err == nil {
			err = emit(text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Restore reads a dump that was made passed ago. The returned function adds its pods, which are stale until the next confirmation. It
// adds none if the dump has another scope, or if its last confirmation is longer than most ago.
func (x *Index) Restore(scope string, records iter.Seq[[]byte], passed, most time.Duration, now time.Time) (use func(), err error) {
	var head dumpHead
	var list []*Pod
	for record := range records {
		into := any(&head)
		if head.Scope != "" {
			list = append(list, new(Pod))
			into = list[len(list)-1]
		}
		if err := json.Unmarshal(record, into); err != nil {
			return nil, fmt.Errorf("invalid record: %w", err)
		}
		if head.Scope != scope || head.Age < 0 || head.Age > most-passed {
			return func() {}, nil
		}
	}
	if len(list) == 0 {
		return func() {}, nil
	}
	return func() {
		for _, p := range list {
			x.Put(p)
		}
		x.Confirm(now.Add(-head.Age - passed - x.staleAfter - 1))
	}, nil
}

// Stats are the numbers of an index.
type Stats struct {
	Pods   int  `json:"pods"`            // pods with addresses of their own, not the host's, that are not about to end
	Shared int  `json:"sharedAddresses"` // addresses of more than one pod: queries from them count for no pod
	Stale  bool `json:"stale"`           // the pods were not confirmed for cluster.staleAfter
}

// Stats returns the numbers.
func (x *Index) Stats(now time.Time) Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	return Stats{Pods: len(x.byName), Shared: len(x.users) - len(*x.byAddr.Load()), Stale: x.IsStale(now)}
}
