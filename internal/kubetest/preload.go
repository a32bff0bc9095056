// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
)

// A Size is the size of a large cluster: the arguments of [Large].
type Size struct {
	Services, Headless, EndpointsPer int
}

// preload puts a store with the objects of o.Preload into a new folder. The API server counts all addresses in use
// whenever it gives one to a service, so to load ten thousand services is a matter of minutes and is done once.
func preload(ctx context.Context, o Options, folder string) error {
	objects := Large(o.Preload.Services, o.Preload.Headless, o.Preload.EndpointsPer)
	text, err := json.Marshal(objects)
	if err != nil {
		return fmt.Errorf("summing up objects: %w", err)
	}
	programs := filepath.Base(o.Programs.Kube) + filepath.Base(o.Programs.Etcd)
	sum := sha256.Sum256(append(text, programs...))
	dir, err := cacheFolder("stores")
	if err != nil {
		return err
	}
	store, err := once(ctx, dir, "large", fmt.Sprintf("%x", sum[:8]), func(path string) error {
		return fillStore(ctx, o.Programs, objects, path)
	})
	if err != nil {
		return err
	}
	if err := os.CopyFS(folder, os.DirFS(store)); err != nil {
		return fmt.Errorf("copying a store: %w", err)
	}
	// What was copied is readable for others, which etcd does not accept.
	if err := os.Chmod(folder, 0o700); err != nil {
		return fmt.Errorf("closing a store to others: %w", err)
	}
	return nil
}

// fillStore runs a cluster, gives it the objects and moves its store to path.
func fillStore(ctx context.Context, p Programs, objects []runtime.Object, path string) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), "filling-") // beside path, so that the store can move
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is a cluster's state
	c, err := Launch(ctx, Options{Programs: p, Dir: dir})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Load(ctx, objects...); err != nil {
		return err
	}
	c.KillAPIServer()
	c.etcd.Stop(grace) // it writes its data
	if err := os.Rename(c.path(storeFolder), path); err != nil {
		return fmt.Errorf("keeping a store: %w", err)
	}
	return nil
}
