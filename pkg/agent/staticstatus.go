// SPDX-License-Identifier: Apache-2.0

package agent

import "github.com/nodecache/node-cache/pkg/static"

// StaticStatus is what is answered from the configuration.
type StaticStatus struct {
	Names     int               `json:"names"`     // of hosts
	Addresses int               `json:"addresses"` // of those names
	Templates int               `json:"templates"`
	Failures  uint64            `json:"failures"` // questions of which a template made no answer
	Files     []HostsFileStatus `json:"files,omitempty"`
}

// HostsFileStatus is one file of hosts.
type HostsFileStatus struct {
	Path      string `json:"path"`
	Names     int    `json:"names"`
	Skipped   int    `json:"skipped,omitempty"` // lines that could not be used
	Reads     uint64 `json:"reads"`             // contents put to work since the start
	LastError string `json:"lastError,omitempty"`
}

// staticStatus is nil if nothing is answered from the configuration.
func staticStatus(st *static.Stats) *StaticStatus {
	if st == nil {
		return nil
	}
	s := &StaticStatus{Names: st.Names, Addresses: st.Addresses, Templates: st.Templates, Failures: st.Failures}
	for i := range st.Files {
		f := &st.Files[i]
		file := HostsFileStatus{Path: f.Path, Names: f.Names, Skipped: f.Skipped, Reads: f.Reads}
		if f.Err != nil {
			file.LastError = f.Err.Error()
		}
		s.Files = append(s.Files, file)
	}
	return s
}

// staticProblems says what is wrong with the files of hosts.
func staticProblems(s *StaticStatus) (list []Problem) {
	if s == nil {
		return nil
	}
	for i := range s.Files {
		f := &s.Files[i]
		if f.LastError != "" {
			list = append(list, Problem{
				Where: "hosts.files", What: f.LastError,
				Hint: "see that the file is there and that this user can read it; what it had before is answered meanwhile",
			})
		}
		if f.Skipped > 0 {
			list = append(list, Problem{
				Where: "hosts.files", What: count(f.Skipped, "line") + " of " + f.Path + " could not be used",
				Hint: "mend the file: each line is an address and its names, as hosts(5) has it",
			})
		}
	}
	return list
}
