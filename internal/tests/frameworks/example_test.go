package frameworks_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/go-chi/chi/v5"
	kratos "github.com/go-kratos/kratos/v2/transport/http"
	"github.com/gorilla/mux"
	"github.com/zeromicro/go-zero/core/conf"
	"github.com/zeromicro/go-zero/rest"
	"github.com/zeromicro/go-zero/rest/pathvar"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// Each function below makes the handler of a service with the route POST /orders/{id}/ship. The
// others have the same result.
func Example() {
	l, err := lockertest.NewMemory().NewLocker() // in a service: locker.Open
	if err != nil {
		log.Fatal(err)
	}
	w := httptest.NewRecorder()
	gorilla(l).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/042/ship", http.NoBody))
	fmt.Println(w.Body)
	// Output: order:42 042
}

// ship writes the key of its lock, and the id as the router gives it to handlers.
func ship(id func(*http.Request) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		lease, ok := httplock.FromContext(r)
		if !ok {
			http.Error(w, "no lock", http.StatusTeapot)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %s", lease.Key(), id(r))
	}
}

func gorilla(l locker.Locker) http.Handler {
	router := mux.NewRouter()
	ship := ship(func(r *http.Request) string { return mux.Vars(r)["id"] })

	lock := httplock.MustNew(l, "order:{param.id|int}", httplock.WithPathValues(mux.Vars))
	router.Handle("/orders/{id}/ship", lock(ship)).Methods(http.MethodPost)

	return router
}

func zeroServer() *rest.Server {
	var c rest.RestConf
	if err := conf.LoadFromYamlBytes([]byte("{Name: shop, Port: 1, Log: {Level: severe, Stat: false}}"), &c); err != nil {
		log.Fatal(err)
	}
	server, err := rest.NewServer(c)
	if err != nil {
		log.Fatal(err)
	}
	return server
}

func handlerOf(server *rest.Server) http.Handler {
	serverless, err := rest.NewServerless(server)
	if err != nil {
		log.Fatal(err)
	}
	return http.HandlerFunc(serverless.Serve)
}

func goZero(l locker.Locker) http.Handler {
	server := zeroServer()
	ship := ship(func(r *http.Request) string { return pathvar.Vars(r)["id"] })

	lock := rest.ToMiddleware(httplock.MustNew(l, "order:{param.id|int}", httplock.WithPathValues(pathvar.Vars)))
	server.AddRoutes(rest.WithMiddleware(lock, rest.Route{Method: http.MethodPost, Path: "/orders/:id/ship", Handler: ship}))

	return handlerOf(server)
}

// goZeroRules guards the routes by a table of rules.
func goZeroRules(l locker.Locker) http.Handler {
	guard, err := httplock.FromRules(l, httplock.Rules{"POST /orders/:id/ship": {Key: "order:{param.id|int}"}}, httplock.WithPathValues(pathvar.Vars))
	if err != nil {
		log.Fatal(err)
	}
	server := zeroServer()
	ship := guard.Wrap("POST /orders/:id/ship", ship(func(r *http.Request) string { return pathvar.Vars(r)["id"] }))
	server.AddRoute(rest.Route{Method: http.MethodPost, Path: "/orders/:id/ship", Handler: ship.ServeHTTP})
	if err := guard.Validate(); err != nil {
		log.Fatal(err)
	}
	return handlerOf(server)
}

func withKratos(l locker.Locker) http.Handler {
	server := kratos.NewServer()
	ship := func(c kratos.Context) error {
		ship(func(r *http.Request) string { return c.Vars().Get("id") })(c.Response(), c.Request())
		return nil
	}

	lock := httplock.MustNew(l, "order:{param.id|int}", httplock.WithPathValues(mux.Vars))
	server.Route("/").POST("/orders/{id}/ship", ship, lock)

	return server
}

func withChi(l locker.Locker) http.Handler {
	router := chi.NewRouter()
	ship := ship(func(r *http.Request) string { return chi.URLParam(r, "id") })

	router.With(httplock.MustNew(l, "order:{param.id|int}")).Post("/orders/{id}/ship", ship)

	return router
}

// Each operation of huma has middlewares of its own.
func withHuma(l locker.Locker) http.Handler {
	router := http.NewServeMux()
	api := humago.New(router, huma.DefaultConfig("shop", "1.0.0"))

	lock := httplock.MustNew(l, "order:{param.id|int}")
	locked := func(ctx huma.Context, next func(huma.Context)) { // one of the Middlewares of a huma.Operation
		r, w := humago.Unwrap(ctx)
		lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next(humago.NewContext(ctx.Operation(), r, w))
		})).ServeHTTP(w, r)
	}
	type shipment struct {
		ID string `path:"id"`
	}
	type shipped struct {
		ContentType string `header:"Content-Type"`
		Body        []byte
	}
	huma.Register(api, huma.Operation{
		OperationID: "ship", Method: http.MethodPost, Path: "/orders/{id}/ship", Middlewares: huma.Middlewares{locked},
	}, func(ctx context.Context, in *shipment) (*shipped, error) {
		lease, ok := locker.FromContext(ctx)
		if !ok {
			return nil, huma.Error400BadRequest("no lock")
		}
		return &shipped{ContentType: "text/plain", Body: fmt.Appendf(nil, "%s %s", lease.Key(), in.ID)}, nil
	})
	return router
}
