import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.regex.Pattern;

/**
 * Ids of a tag from leased ranges: most cost no request. The next range is leased when half of one is used. For
 * many threads, virtual ones, too; Java 11 or newer, no packages: {@code java RangeCache.java orders 5 http://127.0.0.1:8080},
 * with a token, if need be, in {@code LEAF_TOKEN}
 */
public class RangeCache {
    private static final Pattern LEASE = Pattern.compile("\"start\":\"(\\d+)\",\"end\":\"(\\d+)\"");
    /** How long one server may take for a whole answer. */
    private static final Duration TIMEOUT = Duration.ofSeconds(1);
    private static final long PAUSE = TimeUnit.MILLISECONDS.toNanos(100);
    private final HttpClient client = HttpClient.newBuilder().connectTimeout(TIMEOUT).build();
    private final List<String> servers;
    private final String path;
    private final int size;
    private final String token;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    private long next, end, failedAt;
    private long[] spare;
    private String error;
    /** The fetch under way: one for all who wait. */
    private Thread fetching;

    public RangeCache(List<String> servers, String tag, int size) {
        this(servers, tag, size, null);
    }

    /** With a token for servers that ask for one. */
    public RangeCache(List<String> servers, String tag, int size, String token) {
        this.servers = servers;
        this.token = token;
        this.size = size;
        String name = URLEncoder.encode(tag, StandardCharsets.UTF_8).replace("+", "%20");
        this.path = "/v1/segments/" + name + "/lease?count=" + size;
    }

    /** Takes the next id; waits for servers for a second each at most. */
    public long nextId() throws InterruptedException {
        long nanos = TIMEOUT.toNanos() * servers.size() + PAUSE;
        lock.lockInterruptibly();
        try {
            while (true) {
                if (next >= end && spare != null) {
                    next = spare[0];
                    end = spare[1];
                    spare = null;
                }
                boolean due = spare == null && end - next <= size / 2;
                if (due && fetching == null && (error == null || System.nanoTime() - failedAt > PAUSE)) {
                    error = null;
                    fetching = daemon(this::fetch);
                }
                if (next < end) return next++;
                if (error != null || nanos <= 0) {
                    throw new IllegalStateException("no ids: " + (error != null ? error : "no answer"));
                }
                nanos = changed.awaitNanos(nanos);
            }
        } finally {
            lock.unlock();
        }
    }

    /** Drops what was leased. For a process that goes on from a snapshot (SnapStart, CRaC), before it takes an id. */
    public void beginAnew() {
        lock.lock();
        try {
            next = end = 0;
            spare = null;
            error = null;
            fetching = null;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    /** A thread of its own: pools may be busy, with callers that wait here. */
    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work, "leaf-range-cache");
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private void fetch() {
        long[] range = null;
        String failure = "no servers";
        for (String server : servers) {
            FutureTask<long[]> attempt = new FutureTask<>(() -> lease(server));
            daemon(attempt);
            try {
                range = attempt.get(TIMEOUT.toNanos(), TimeUnit.NANOSECONDS);
                break;
            } catch (TimeoutException late) {
                attempt.cancel(true);
                failure = server + ": no whole answer within " + TIMEOUT.toMillis() + " ms";
            } catch (Exception refused) {
                failure = server + ": " + (refused.getCause() != null ? refused.getCause() : refused);
            }
        }
        lock.lock();
        try {
            if (fetching != Thread.currentThread()) return; // Of before beginAnew.
            fetching = null;
            if (range != null && range[0] < end) failure = range[0] + " was leased before: ask an operator";
            else spare = range;
            if (spare == null) {
                error = failure;
                failedAt = System.nanoTime();
            }
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private long[] lease(String server) throws Exception {
        HttpRequest.Builder request =
                HttpRequest.newBuilder(URI.create(server + path)).POST(HttpRequest.BodyPublishers.noBody());
        if (token != null) request.header("Authorization", "Bearer " + token);
        HttpResponse<String> answer = client.send(request.build(), HttpResponse.BodyHandlers.ofString());
        var found = LEASE.matcher(answer.body());
        if (answer.statusCode() == 200 && found.find()) {
            long start = Long.parseLong(found.group(1)), end = Long.parseLong(found.group(2));
            if (end - start == size) return new long[] {start, end};
        }
        throw new IllegalStateException(answer.statusCode() + " " + answer.body());
    }

    public static void main(String[] args) throws InterruptedException {
        List<String> servers = Arrays.asList(args).subList(2, args.length);
        RangeCache ids = new RangeCache(servers, args[0], 1000, System.getenv("LEAF_TOKEN"));
        for (int count = Integer.parseInt(args[1]); count > 0; count--) System.out.println(ids.nextId());
    }
}
