// SPDX-License-Identifier: Apache-2.0

package skydns

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds of memory in bytes. A record counts as its key, its value and recordSize, so there are at most 65,536.
const (
	maxBytes   = 16 << 20
	recordSize = 256
)

// Records are the records of some zones. They are safe for concurrent use.
type Records struct {
	Revision atomic.Int64 // etcd revision of the records; 0: not set, or all keys must be read again

	prefix string
	zones  []zone

	// Recent answers, one per slot: building a large one takes as long as a thousand cache hits. An answer counts only while its
	// changes number is the current one.
	changes atomic.Uint64
	recent  [recentSlots]atomic.Pointer[recent]

	mu      sync.RWMutex      // guards what follows; held for operations in memory only
	list    []*record         // by path, then by key
	sizes   map[string]int    // bytes by key, also of invalid values
	invalid map[string]string // reason by key
	bytes   int               // sum of sizes
	refused int               // number of records refused because of maxBytes
}

func (r *Records) compare(a *record, path, key string) int {
	return cmp.Or(strings.Compare(a.path, path), strings.Compare(a.key, key))
}

// Put adds the record of a key or replaces it. A record in no zone is ignored. An invalid one, or one beyond the memory bound, is
// counted, and the key has no record then. leased: the record ends with a lease of etcd.
func (r *Records) Put(key string, value []byte, leased bool) {
	path, err := r.path(key)
	if err == nil && !slices.ContainsFunc(r.zones, func(z zone) bool { return strings.HasPrefix(path, z.path) }) {
		return
	}
	var made *record
	if err == nil {
		made, err = parseRecord(key, path, value, leased)
	}
	size := len(key) + min(len(value), maxValue) + recordSize
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changes.Add(1)
	r.removeLocked(key)
	if r.bytes+size > maxBytes {
		r.refused++
		return
	}
	r.bytes += size
	r.sizes[key] = size
	if err != nil {
		r.invalid[key] = fmt.Sprintf("%.200s", err) // a value may be large
		return
	}
	at, _ := slices.BinarySearchFunc(r.list, made, func(a, b *record) int { return r.compare(a, b.path, b.key) })
	r.list = slices.Insert(r.list, at, made)
}

// Delete removes the record of a key, if there is one.
func (r *Records) Delete(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changes.Add(1)
	r.removeLocked(key)
}

func (r *Records) removeLocked(key string) {
	size, found := r.sizes[key]
	if !found {
		return
	}
	delete(r.sizes, key)
	r.bytes -= size
	if r.invalid[key] != "" {
		delete(r.invalid, key)
		return
	}
	path, _ := r.path(key)
	at, _ := slices.BinarySearchFunc(r.list, path, func(a *record, path string) int { return r.compare(a, path, key) })
	r.list = slices.Delete(r.list, at, at+1)
}

// HasRoom reports whether records were refused, and a quarter of the memory bound is free.
func (r *Records) HasRoom() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.refused > 0 && r.bytes < maxBytes/4*3
}

var errBadPath = errors.New("the path is not a domain name")

// path returns the path of a key's name. Keys that differ only in case, or in a slash at the end, have the same name.
func (r *Records) path(key string) (string, error) {
	below, _ := strings.CutPrefix(key, r.prefix)
	path := strings.ToLower(strings.TrimSuffix(below, "/")) + "/"
	length := 1
	for label := range strings.SplitSeq(path[:len(path)-1], "/") {
		bad := strings.ContainsFunc(label, func(c rune) bool { return c <= ' ' || c > '~' || c == '.' || c == '\\' })
		if length += 1 + len(label); label == "" || len(label) > wire.MaxLabel || length > wire.MaxName || bad {
			return "", errBadPath
		}
	}
	return path, nil
}

// pathOf returns the path of a canonical name in wire form. A slash in a label becomes 0, a byte that no key's path has.
func pathOf(name []byte) string {
	var room [wire.MaxName]byte
	at := len(name) - 1
	for off := 0; name[off] != 0; off += 1 + int(name[off]) {
		label := name[off+1 : off+1+int(name[off])]
		at -= len(label) + 1
		copy(room[at:], bytes.ReplaceAll(label, []byte{'/'}, []byte{0}))
		room[at+len(label)] = '/'
	}
	return string(room[:len(name)-1])
}

// isWildcard reports whether a label of a query stands for every label.
func isWildcard(label string) bool { return label == "*" || label == "any" }

// fixed returns the part of a path before its first wildcard.
func fixed(path string) string {
	for rest := path; rest != ""; {
		label, after, _ := strings.Cut(rest, "/")
		if isWildcard(label) {
			return path[:len(path)-len(rest)]
		}
		rest = after
	}
	return path
}

// matches reports whether a path is at or below a pattern: the path of a query, which may have wildcards.
func matches(path, pattern string) bool {
	for pattern != "" {
		wanted := strings.IndexByte(pattern, '/') + 1
		label := strings.IndexByte(path, '/') + 1
		if label == 0 || path[:label] != pattern[:wanted] && !isWildcard(pattern[:wanted-1]) {
			return false
		}
		path, pattern = path[label:], pattern[wanted:]
	}
	return true
}

// find calls yield with the records at and below a path, in their order, until yield returns false. It reads at most
// budget records, and returns the remaining budget, at least one less; negative: there are more records.
func (r *Records) find(path string, budget int, yield func(*record) bool) int {
	start := fixed(path)
	rest := path[len(start):]
	r.mu.RLock()
	defer r.mu.RUnlock()
	at, _ := slices.BinarySearchFunc(r.list, start, func(a *record, path string) int { return strings.Compare(a.path, path) })
	if at == len(r.list) || !strings.HasPrefix(r.list[at].path, start) {
		return budget - 1
	}
	for ; at < len(r.list) && strings.HasPrefix(r.list[at].path, start); at++ {
		if budget--; budget < 0 || matches(r.list[at].path[len(start):], rest) && !yield(r.list[at]) {
			break
		}
	}
	return budget
}
