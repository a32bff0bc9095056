// SPDX-License-Identifier: Apache-2.0

package source

import "time"

// Kinds of sources, as Stats.Kind has them.
const (
	KindNone      = "none" // built-in defaults
	KindFile      = "file"
	KindConfigMap = "configmap"
)

// Kinds returns all kinds of sources.
func Kinds() []string { return []string{KindNone, KindFile, KindConfigMap} }

// Stats is what a Source counts.
type Stats struct {
	Kind    string // one of Kinds
	KubeDNS bool   // a kube-dns folder is laid over it

	LastGood     bool   // the configuration in use is the last good one, read at the start
	Reachable    bool   // the last attempt to read the source found something out, if only that the ConfigMap does not exist
	Requests     uint64 // to the API server, for the ConfigMap
	Saves        uint64 // of the last good configuration
	SaveFailures uint64

	EventsWritten uint64
	EventsFailed  uint64 // given up: the API server did not take them
	EventsDropped uint64 // not tried: a newer one came before its turn

	Panics uint64 // defects that cut short reading, keeping or telling of a configuration
}

// Status is how a Source is doing, for a person.
type Status struct {
	Kind string // one of Kinds
	Name string // path of the file, or NAMESPACE/NAME of the ConfigMap; empty: none

	KubeDNS string // its folder; empty: none

	LastGood      string    // folder of the last good configuration; empty: none is kept
	LastGoodInUse bool      // it is what runs now
	Saved         time.Time // when it was kept last by this process; zero: not yet
	SaveError     string    // why the last attempt failed; empty: it did not

	// Problem is why the source cannot be read now; nil: it can. What is read and refused is not among it.
	Problem *Error
}

// An Error is what is wrong with a source, and what a person can do about it.
type Error struct {
	Err  error
	Hint string // empty: there is nothing to add

	reason string // the kind of it: two of one kind are not news
}

// Error says what is wrong and why.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap is the error itself.
func (e *Error) Unwrap() error { return e.Err }
