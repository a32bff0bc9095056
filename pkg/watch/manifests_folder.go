// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// maxManifestFile bounds the size of a file. A list of 11,000 Services takes 10 MB.
const maxManifestFile = 32 << 20

// manifestFolder is the content of a folder. It keeps the last good objects of a file that becomes invalid.
//
// An unusable document removes nothing. If it still names its object, that object stays as it was. If not, every object
// of its file stays as it was, since it may name any of them. Kept objects are dropped once the file defines them again
// in a valid document, or no longer contains an invalid one.
type manifestFolder struct {
	path  string
	files []*manifestFile // by name
	err   error           // why the folder cannot be read

	// recordPanic is called with a panic that a file caused. The file counts as invalid.
	recordPanic func(file string, panicked any, stack []byte)
}

// manifestFile is the content of one file.
type manifestFile struct {
	name     string
	sum      [sha256.Size]byte // of its content
	err      error             // why the content cannot be read
	objects  []manifest        // usable ones, in the order of the file
	kept     []manifest        // from before a mistake
	problems []Problem
}

// scan reads the files again and reports whether anything changed.
func (f *manifestFolder) scan() bool {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		// A folder that is missing or unreadable says nothing about its objects.
		changed := f.err == nil || f.err.Error() != err.Error()
		f.err = err
		return changed
	}
	changed := f.err != nil
	f.err = nil
	var files []*manifestFile
	for _, entry := range entries {
		name := entry.Name()
		if !isManifest(name) {
			continue
		}
		data, err := filewatch.ReadFile(filepath.Join(f.path, name), maxManifestFile)
		if errors.Is(err, syscall.EISDIR) {
			continue
		}
		err = withoutPath(err)
		before := f.file(name)
		if before != nil && before.same(data, err) {
			files = append(files, before)
			continue
		}
		changed = true
		files = append(files, f.decode(name, data, err, before))
	}
	changed = changed || len(files) != len(f.files)
	f.files = files
	return changed
}

// file returns the file of that name, or nil.
func (f *manifestFolder) file(name string) *manifestFile {
	i, found := slices.BinarySearchFunc(f.files, name, func(file *manifestFile, name string) int {
		return strings.Compare(file.name, name)
	})
	if !found {
		return nil
	}
	return f.files[i]
}

// isManifest reports whether the name is that of a manifest file. It excludes hidden files, and thus the folders behind a
// ConfigMap's links, and kustomize files, which are not objects.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	stem, ext := strings.TrimSuffix(name, filepath.Ext(name)), filepath.Ext(name)
	return ext == ".json" || (ext == ".yaml" || ext == ".yml") && stem != "kustomization"
}

// withoutPath returns the error without the path that it names.
func withoutPath(err error) error {
	if about, ok := errors.AsType[*fs.PathError](err); ok {
		return about.Err
	}
	return err
}

// same reports whether a file is unchanged.
func (f *manifestFile) same(data []byte, err error) bool {
	if err != nil || f.err != nil {
		return err != nil && f.err != nil && err.Error() == f.err.Error()
	}
	return sha256.Sum256(data) == f.sum
}

// decode decodes a file. The objects that its mistakes keep come from before, its previous state.
func (f *manifestFolder) decode(name string, data []byte, err error, before *manifestFile) *manifestFile {
	file := &manifestFile{name: name, err: err}
	var last []manifest
	if before != nil {
		last = slices.Concat(before.objects, before.kept)
	}
	if err != nil {
		file.kept = last
		file.problems = []Problem{{File: name, What: "reading the file: " + err.Error()}}
		return file
	}
	file.sum = sha256.Sum256(data)
	r := manifestReader{file: name}
	f.recovering(&r, func() { r.readFile(data) })
	file.objects, file.problems = r.objects, r.problems
	good, broken := map[manifestID]bool{}, map[manifestID]bool{}
	for i := range file.objects {
		good[file.objects[i].id] = true
	}
	for _, id := range r.broken {
		broken[id] = true
	}
	for i := range last {
		if id := last[i].id; (r.nameless || broken[id]) && !good[id] {
			file.kept = append(file.kept, last[i])
		}
	}
	return file
}

// recovering runs read. A panic of the decoders becomes a problem of the file.
func (f *manifestFolder) recovering(r *manifestReader, read func()) {
	defer func() {
		if panicked := recover(); panicked != nil {
			r.nameless = true
			r.problems = append(r.problems, Problem{
				File: r.file, Document: r.doc.number, Line: r.doc.line, What: fmt.Sprintf("internal error: %v", panicked),
			})
			f.recordPanic(r.file, panicked, debug.Stack())
		}
	}()
	read()
}

// readFile decodes all documents of a file.
func (r *manifestReader) readFile(data []byte) {
	if filepath.Ext(r.file) != ".json" {
		for _, doc := range splitManifest(data) {
			r.readDocument(doc)
		}
		return
	}
	docs, line, err := splitJSON(data)
	for _, doc := range docs {
		r.readDocument(doc)
	}
	if err != nil {
		r.nameless = true
		r.problems = append(r.problems, Problem{
			File: r.file, Document: len(docs) + 1, Line: line, What: "JSON: " + err.Error(),
			Hint: "the file holds JSON objects, one after the other",
		})
	}
}

// all returns the objects of the folder, each once, and all problems. Of objects with the same name, the first by file
// name and position wins. An object kept because of a mistake comes last.
func (f *manifestFolder) all() ([]manifest, []Problem) {
	var objects []manifest
	var problems []Problem
	if f.err != nil {
		problems = append(problems, Problem{
			What: "reading the folder: " + withoutPath(f.err).Error(), Hint: "what it gave is served until it can be read again",
		})
	}
	first := map[manifestID]manifest{}
	for _, file := range f.files {
		problems = append(problems, file.problems...)
		for _, o := range file.objects {
			other, taken := first[o.id]
			if !taken {
				first[o.id] = o
				objects = append(objects, o)
				continue
			}
			problems = append(problems, Problem{
				File: o.file, Document: o.document, Line: o.line,
				What: fmt.Sprintf("%s: already defined in %s, document %d, line %d", o.id, other.file, other.document, other.line),
				Hint: "remove one of the two; the first one is served",
			})
		}
	}
	for _, file := range f.files {
		for _, o := range file.kept {
			if _, taken := first[o.id]; !taken {
				first[o.id] = o
				objects = append(objects, o)
			}
		}
	}
	return objects, boundProblems(problems)
}
