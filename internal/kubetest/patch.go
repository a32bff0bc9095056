// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// patchFolder is the folder of a module with the files that it builds with in the place of those of modules that it needs: PACKAGE/FILE.
const patchFolder = "testdata/patches"

// patches returns the files below the module's patchFolder.
func patches(module string) (files []string, err error) {
	err = filepath.WalkDir(filepath.Join(module, patchFolder), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("listing patches: %w", err)
	}
	return files, nil
}

// patch copies the modules of a module's patches into a folder, with the patches. It returns the flags of the go command to use the copies.
func patch(ctx context.Context, module, folder string) (flags []string, err error) {
	files, err := patches(module)
	if err != nil || len(files) == 0 {
		return nil, err
	}
	modfile := filepath.Join(folder, "go.mod")
	for _, name := range []string{"go.mod", "go.sum"} {
		if err := copyFile(filepath.Join(module, name), filepath.Join(folder, name)); err != nil {
			return nil, err
		}
	}
	for _, file := range files {
		name, err := filepath.Rel(filepath.Join(module, patchFolder), file)
		if err != nil {
			return nil, err
		}
		if err := patchFile(ctx, module, modfile, name, file); err != nil {
			return nil, fmt.Errorf("patching %s: %w", name, err)
		}
	}
	return []string{"-modfile=" + modfile}, nil
}

// patchFile puts a patch into a copy of its module beside modfile, which then uses the copy. The name begins with the path of its package.
func patchFile(ctx context.Context, module, modfile, name, file string) error {
	listed, err := goCommand(ctx, module, "list", "-f", "{{.Module.Path}}\n{{.Module.Dir}}", filepath.ToSlash(filepath.Dir(name)))
	if err != nil {
		return err
	}
	path, source, _ := strings.Cut(strings.TrimSpace(listed), "\n")
	beside := filepath.Dir(modfile)
	patched := filepath.Join(beside, filepath.FromSlash(path))
	if _, err := os.Stat(patched); os.IsNotExist(err) {
		if err := os.CopyFS(patched, os.DirFS(source)); err != nil {
			return err
		}
		if _, err := goCommand(ctx, module, "mod", "edit", "-replace="+path+"="+patched, modfile); err != nil {
			return err
		}
	}
	return copyFile(file, filepath.Join(beside, name))
}

// copyFile copies a file, also over another.
func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}
