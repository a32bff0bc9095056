// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	origin "github.com/nodecache/node-cache/pkg/source"
)

// SourceStatus says where the configuration comes from.
type SourceStatus struct {
	Source   string          `json:"source"`             // one of source.Kinds
	File     string          `json:"file"`               // its path; empty: it is in no file
	Object   string          `json:"object,omitempty"`   // the ConfigMap, as namespace/name
	KubeDNS  string          `json:"kubeDNS,omitempty"`  // folder of a kube-dns ConfigMap that is laid over it
	Unread   *SourceProblem  `json:"unread,omitempty"`   // why the source cannot be read now; nil: it can
	LastGood *LastGoodStatus `json:"lastGood,omitempty"` // nil: none is kept
}

// A SourceProblem is what is wrong with a source.
type SourceProblem struct {
	What string `json:"what"`
	Hint string `json:"hint"`
}

// LastGoodStatus is what becomes of the last good configuration.
type LastGoodStatus struct {
	Folder    string `json:"folder"`
	InUse     bool   `json:"inUse"` // it is what runs: the source had nothing good at the start
	Kept      string `json:"kept"`  // when it was last, RFC 3339; "not yet" since the start
	LastError string `json:"lastError,omitempty"`
}

func (a *Agent) sourceStatus() SourceStatus {
	if a.source == nil {
		return SourceStatus{Source: origin.KindNone}
	}
	st := a.source.Status()
	s := SourceStatus{Source: st.Kind, KubeDNS: st.KubeDNS}
	if st.Kind == origin.KindFile {
		s.File = st.Name
	} else {
		s.Object = st.Name
	}
	if st.Problem != nil {
		s.Unread = &SourceProblem{What: st.Problem.Error(), Hint: st.Problem.Hint}
	}
	if st.LastGood != "" {
		s.LastGood = &LastGoodStatus{Folder: st.LastGood, InUse: st.LastGoodInUse, Kept: "not yet", LastError: st.SaveError}
		if !st.Saved.IsZero() {
			s.LastGood.Kept = st.Saved.UTC().Format(time.RFC3339)
		}
	}
	return s
}

// sourceProblems says what is wrong with the configuration: that it cannot be read, that it is bad, that it is not what
// runs, that it is not kept.
func sourceProblems(s *ConfigStatus) (list []Problem) {
	if s.Unread != nil {
		list = append(list, Problem{Where: "config", What: s.Unread.What, Hint: s.Unread.Hint})
	}
	old := s.LastGood != nil && s.LastGood.InUse
	if !s.LastOK && (s.Unread == nil || !old) { // else that is why the last one was refused
		list = append(list, refusedProblem(s))
	}
	if old {
		list = append(list, Problem{
			Where: "config", What: "the last good configuration of " + cmp.Or(s.File, s.Object) + " is in use, from " + s.LastGood.Folder,
			Hint: "it was read at the start because there was no good one; the next good one takes its place",
		})
	}
	if s.LastGood != nil && s.LastGood.LastError != "" {
		list = append(list, Problem{
			Where: "config", What: "the last good configuration is not kept: " + s.LastGood.LastError,
			Hint: "see that the folder can be written to and has room; it is tried again each minute",
		})
	}
	return list
}

// refusedProblem is that of a configuration that was read and is not in use.
func refusedProblem(s *ConfigStatus) Problem {
	first, _, _ := strings.Cut(s.LastError, "\n")
	thing, place := "file", "the file"
	if s.Object != "" {
		thing, place = "configuration", "ConfigMap "+s.Object
	}
	return Problem{
		Where: "config", What: fmt.Sprintf("the last %s was refused: %s", thing, first),
		Hint: "mend " + place + "; config.lastError has it all. The configuration before it stays in use",
	}
}
