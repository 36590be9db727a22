import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.regex.Pattern;

/**
 * Ids of a tag from leased ranges: most cost no request. The next range is leased when half of one is used. For
 * many threads; Java 11 or newer, no packages: {@code java RangeCache.java orders 5 http://127.0.0.1:8080}
 */
public class RangeCache {
    private static final Pattern LEASE = Pattern.compile("\"start\":\"(\\d+)\",\"end\":\"(\\d+)\"");
    private final HttpClient client = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(1)).build();
    private final List<String> servers;
    private final String path;
    private final int size;
    private long next, end;
    private CompletableFuture<long[]> spare;

    public RangeCache(List<String> servers, String tag, int size) {
        this.servers = servers;
        this.size = size;
        String name = URLEncoder.encode(tag, StandardCharsets.UTF_8).replace("+", "%20");
        this.path = "/v1/segments/" + name + "/lease?count=" + size;
    }

    public synchronized long nextId() {
        if (spare == null && end - next <= size / 2) spare = CompletableFuture.supplyAsync(this::lease);
        if (next >= end) {
            CompletableFuture<long[]> leased = spare;
            spare = null;
            long[] range;
            try {
                range = leased.join();
            } catch (CompletionException failure) {
                range = lease(); // It may have failed long ago.
            }
            if (range[0] < end) throw new IllegalStateException(range[0] + " was leased before: ask an operator");
            next = range[0];
            end = range[1];
        }
        return next++;
    }

    private long[] lease() {
        String error = "no servers";
        for (String server : servers) {
            try {
                HttpRequest request = HttpRequest.newBuilder(URI.create(server + path))
                        .timeout(Duration.ofSeconds(1)).POST(HttpRequest.BodyPublishers.noBody()).build();
                HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
                var found = LEASE.matcher(answer.body());
                error = server + ": " + answer.statusCode() + " " + answer.body();
                if (answer.statusCode() != 200 || !found.find()) continue;
                long start = Long.parseLong(found.group(1)), end = Long.parseLong(found.group(2));
                if (end - start == size) return new long[] {start, end};
            } catch (Exception failure) {
                error = server + ": " + failure;
            }
        }
        throw new IllegalStateException("no ids: " + error);
    }

    public static void main(String[] args) {
        List<String> servers = Arrays.asList(args).subList(2, args.length);
        RangeCache ids = new RangeCache(servers, args[0], 1000);
        for (int count = Integer.parseInt(args[1]); count > 0; count--) System.out.println(ids.nextId());
    }
}
