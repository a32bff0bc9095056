// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/panics"
)

const (
	// maxManifestFile bounds the size of a file. A list of 11,000 Services takes 10 MB.
	maxManifestFile = 32 << 20

	// maxProblems bounds the problems reported for one folder: it may contain other kinds of files.
	maxProblems = 100
)

// manifestFolder is the content of a folder.
type manifestFolder struct {
	path    string
	imports bool // ServiceImports are used
	guard   panics.Guard
	files   []*manifestFile // sorted by name
	err     error           // why the folder cannot be read
}

// manifestFile is the content of one file. While it has an unusable document, it keeps the objects that it had before,
// since that document may name any of them.
type manifestFile struct {
	name     string
	sum      [sha256.Size]byte // SHA-256 of the content
	err      error             // why the content cannot be read
	objects  []manifest        // usable ones, in the order of the file
	kept     []manifest        // objects from before a document became unusable
	problems []Problem
}

// scan reads the files again and reports whether anything changed.
func (f *manifestFolder) scan(ctx context.Context) bool {
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
		next := &manifestFile{name: name, sum: sha256.Sum256(data), err: withoutPath(err)}
		before := &manifestFile{}
		if i := slices.IndexFunc(f.files, func(file *manifestFile) bool { return file.name == name }); i >= 0 {
			before = f.files[i]
		}
		if before.name == "" || before.sum != next.sum || fmt.Sprint(before.err) != fmt.Sprint(next.err) {
			changed = true
			f.decode(ctx, next, slices.Concat(before.objects, before.kept), func(r *manifestReader) { r.readFile(data) })
			before = next
		}
		files = append(files, before)
	}
	changed = changed || len(files) != len(f.files)
	f.files = files
	return changed
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

// decode decodes a file with read. last are the objects that it had before. A panic becomes a problem of the file.
func (f *manifestFolder) decode(ctx context.Context, file *manifestFile, last []manifest, read func(*manifestReader)) {
	r := manifestReader{file: file.name, imports: f.imports}
	if file.err != nil {
		r.broken = true
		r.problems = []Problem{{File: file.name, What: "reading the file: " + file.err.Error()}}
	} else if err := f.guard.Do(ctx, func() error {
		read(&r)
		return nil
	}); err != nil {
		r.broken = true
		r.mistake(r.doc.line, err.Error(), "")
	}
	file.objects, file.problems = r.objects, r.problems
	if !r.broken {
		return
	}
	good := map[manifestID]bool{}
	for i := range file.objects {
		good[file.objects[i].id] = true
	}
	file.kept = slices.DeleteFunc(last, func(o manifest) bool { return good[o.id] })
}

// objects returns the objects of the folder, each once, and all problems. Of objects with the same name, the first by
// file name and position wins. An object kept because of a mistake comes last.
func (f *manifestFolder) objects() (list []manifest, problems []Problem) {
	if f.err != nil {
		problems = append(problems, Problem{
			What: "reading the folder: " + withoutPath(f.err).Error(), Hint: "what it gave is served until it can be read again",
		})
	}
	first := map[manifestID]manifest{}
	for _, file := range f.files {
		problems = append(problems, file.problems...)
		for _, o := range file.objects {
			if other, taken := first[o.id]; taken {
				problems = append(problems, Problem{
					File: o.file, Document: o.document, Line: o.line,
					What: fmt.Sprintf("%s: already defined in %s, document %d, line %d", o.id, other.file, other.document, other.line),
					Hint: "remove one of the two; the first one is served",
				})
				continue
			}
			first[o.id] = o
			list = append(list, o)
		}
	}
	for _, file := range f.files {
		for _, o := range file.kept {
			if _, taken := first[o.id]; !taken {
				first[o.id] = o
				list = append(list, o)
			}
		}
	}
	if more := len(problems) - maxProblems; more > 0 {
		problems = append(problems[:maxProblems:maxProblems], Problem{What: fmt.Sprintf("%d more problems", more)})
	}
	return list, problems
}

// manifestSelection selects the objects that the zone sees, as the API server's selectors and CoreDNS's options do.
type manifestSelection struct {
	namespaces                []string // empty: all
	services, namespaceLabels labels.Selector
	endpoints                 Endpoints
}

// split returns all objects and the selected ones, by kind. A namespace with an object exists, even without a document of its own.
func (s *manifestSelection) split(manifests []manifest) (all, selected map[zone.Kind][]object) {
	var objects []object
	services := map[types.NamespacedName]*corev1.Service{}
	for i := range manifests {
		objects = append(objects, manifests[i].objects...)
	}
	for _, o := range objects {
		if svc, ok := o.(*corev1.Service); ok {
			services[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = svc
		}
	}
	all, selected = map[zone.Kind][]object{}, map[zone.Kind][]object{}
	exposed := s.exposed(objects)
	for name := range exposed {
		selected[zone.Namespaces] = append(selected[zone.Namespaces], &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, o := range objects {
		kind, wanted := zone.Namespaces, false
		switch o := o.(type) {
		case *corev1.Service:
			kind, wanted = zone.Services, s.services.Matches(labels.Set(o.Labels))
		case *discoveryv1.EndpointSlice:
			kind, wanted = zone.Slices, s.wantsSlice(o, services[types.NamespacedName{Namespace: o.Namespace, Name: o.Labels[discoveryv1.LabelServiceName]}])
			if o.Labels[labelImport] != "" && exposed[o.Namespace] {
				selected[zone.ImportSlices] = append(selected[zone.ImportSlices], o)
			}
		case *corev1.Pod:
			kind, wanted = zone.Pods, true
		case *serviceImport:
			kind, wanted = zone.Imports, true
		default:
		}
		all[kind] = append(all[kind], o)
		if wanted && exposed[o.GetNamespace()] {
			selected[kind] = append(selected[kind], o)
		}
	}
	return all, selected
}

// exposed returns the namespaces that the zone sees. A namespace has the labels of its own document and the one that the
// API server gives each namespace.
func (s *manifestSelection) exposed(objects []object) map[string]bool {
	labelled := map[string]labels.Set{}
	for _, o := range objects {
		name := o.GetNamespace()
		document, ok := o.(*corev1.Namespace)
		if ok {
			name = document.Name
		}
		if labelled[name] == nil {
			labelled[name] = labels.Set{corev1.LabelMetadataName: name}
		}
		if ok {
			labelled[name] = labels.Merge(document.Labels, labelled[name])
		}
	}
	exposed := map[string]bool{}
	for name, set := range labelled {
		if (len(s.namespaces) == 0 || slices.Contains(s.namespaces, name)) && s.namespaceLabels.Matches(set) {
			exposed[name] = true
		}
	}
	return exposed
}

// wantsSlice reports whether the zone needs a slice. svc is its Service, nil if the folder has none. An EndpointSlice has
// the labels of its Service: in a cluster, a controller copies them.
func (s *manifestSelection) wantsSlice(slice *discoveryv1.EndpointSlice, svc *corev1.Service) bool {
	set := labels.Set(slice.Labels)
	if svc != nil {
		set = svc.Labels
	}
	return s.services.Matches(set) && (s.endpoints == EndpointsAll || s.endpoints == EndpointsHeadless && svc != nil && headless(svc))
}
